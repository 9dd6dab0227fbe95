-- :checkhealth cantrip
local M = {}

function M.check()
  local health = vim.health
  health.start('cantrip')
  if vim.fn.has('nvim-0.11') == 0 then
    health.error('Neovim 0.11 or later is needed for lsp/cantrip.lua')
    return
  end
  local config = vim.lsp.config.cantrip
  if not config then
    health.error("lsp/cantrip.lua is not in 'runtimepath'", { 'install the folder editors/neovim as a plugin' })
    return
  end
  local program = type(config.cmd) == 'table' and config.cmd[1] or 'cantrip'
  if vim.fn.executable(program) == 0 then
    health.error(("no program '%s' on PATH"):format(program), {
      "pipx install '.[editor]' in a clone of Cantrip",
      "or give its path: vim.lsp.config('cantrip', { cmd = { '/path/to/cantrip', 'lsp' } })",
    })
    return
  end
  local said = vim.system({ program, 'lsp', '--version' }, { text = true }):wait(20000)
  if said.code == 0 then
    health.ok(vim.fn.exepath(program) .. ': ' .. vim.trim(said.stdout))
  else
    health.error(('%s lsp --version ended with %d'):format(program, said.code), { vim.trim(said.stderr or '') })
  end
  local clients = vim.lsp.get_clients({ name = 'cantrip' })
  if #clients == 0 then
    health.info('no server runs: it starts with the first recipe (*.cantrip.yaml) or loom (*.loom.jsonl)')
  end
  for _, client in ipairs(clients) do
    local folders = client.root_dir or 'no folder'
    health.ok(('a server runs for %s, with %d commands'):format(folders, #require('cantrip').names('')))
  end
  if vim.fn.executable('cantrip-acp') == 0 then
    health.warn('no program cantrip-acp on PATH: CodeCompanion and avante.nvim start the agent by it')
  end
end

return M
