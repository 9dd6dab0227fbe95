-- Recipes and looms by their names. A compound type keeps what there is for YAML and JSON lines (highlighting,
-- indentation), while language servers for plain YAML leave recipes alone.
vim.filetype.add({
  pattern = {
    ['.*%.cantrip%.ya?ml'] = { 'yaml.cantrip', { priority = 10 } },
    ['.*%.loom%.jsonl'] = { 'jsonl.cantrip', { priority = 10 } },
  },
})
