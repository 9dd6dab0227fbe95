-- Recipes, suites and looms by their names. A compound type keeps what there is for YAML, TOML and JSON lines (highlighting,
-- indentation), while language servers for plain YAML leave recipes alone.
local function suite(_, buffer)
  -- tests.yaml is also what others call their files: a suite's cases begin with a rule.
  for _, line in ipairs(vim.api.nvim_buf_get_lines(buffer, 0, 200, false)) do
    if line:match('^%s*%-%s+rule:') then
      return 'yaml.cantrip'
    end
  end
end

vim.filetype.add({
  pattern = {
    ['.*%.cantrip%.ya?ml'] = { 'yaml.cantrip', { priority = 10 } },
    ['.*%.cantrip%.toml'] = { 'toml.cantrip', { priority = 10 } },
    ['.*/tests%.ya?ml'] = { suite, { priority = 10 } },
    ['.*%.tests%.ya?ml'] = { suite, { priority = 10 } },
    ['.*%.loom%.jsonl'] = { 'jsonl.cantrip', { priority = 10 } },
  },
})
