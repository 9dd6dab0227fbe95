-- The commands, and the language server for every recipe. `vim.g.cantrip_enable = false` before plugins are loaded leaves the
-- server to your own vim.lsp.enable('cantrip').
if vim.g.loaded_cantrip or vim.fn.has('nvim-0.11') == 0 then
  return
end
vim.g.loaded_cantrip = true

local command = vim.api.nvim_create_user_command

command('CantripCast', function(given)
  require('cantrip').cast(given.args ~= '' and given.args or nil)
end, { nargs = '*', desc = 'Cast the recipe of this buffer; asks for an intent where none is given' })

command('CantripCancel', function()
  require('cantrip').cancel()
end, { desc = 'End what Cantrip is doing' })

command('CantripView', function(given)
  require('cantrip').view(given.args ~= '' and given.args or nil)
end, { nargs = '?', complete = 'file', desc = 'Open a loom (this buffer, or a file) in the viewer' })

command('CantripRun', function(given)
  local name, rest = given.args:match('^(%S+)%s*(.*)$')
  require('cantrip').run_text(name, rest)
end, {
  nargs = '+',
  complete = function(lead)
    return require('cantrip').names(lead)
  end,
  desc = "Run one of the language server's commands with arguments in JSON",
})

if vim.g.cantrip_enable ~= false then
  vim.lsp.enable('cantrip')
end
