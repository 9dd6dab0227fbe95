-- Loaded for the second half of yaml.cantrip and jsonl.cantrip.
local buffer = vim.api.nvim_get_current_buf()
local format = vim.bo[buffer].filetype:match('^%a+')

if format == 'jsonl' then
  -- A turn is a line, and lines are long.
  vim.wo[0][0].wrap = false
  vim.bo[buffer].synmaxcol = 400
else
  vim.bo[buffer].commentstring = '# %s'
  vim.bo[buffer].shiftwidth = 2
  vim.bo[buffer].expandtab = true
end
vim.b[buffer].undo_ftplugin = (vim.b[buffer].undo_ftplugin or 'exe') .. ' | setlocal wrap< synmaxcol< commentstring< shiftwidth< expandtab<'
