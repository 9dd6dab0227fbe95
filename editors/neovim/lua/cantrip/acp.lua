-- The agent in plugins that speak the Agent Client Protocol; what is needed of them is asked for when they call it.
local M = {}

--- For CodeCompanion: `adapters = { acp = { cantrip = require('cantrip.acp').codecompanion } }`.
--- `options`: `command` (a list), `env` (a table), `timeout` in milliseconds.
function M.codecompanion(options)
  options = options or {}
  -- goose's adapter is a plain command that speaks the protocol: nothing of it but that is taken.
  return require('codecompanion.adapters').extend('goose', {
    name = 'cantrip',
    formatted_name = 'Cantrip',
    commands = { default = options.command or { 'cantrip-acp' } },
    env = options.env or {},
    defaults = { timeout = options.timeout or 20000 },
  })
end

--- For avante.nvim: `provider = 'cantrip', acp_providers = { cantrip = require('cantrip.acp').avante() }`.
function M.avante(options)
  options = options or {}
  local command = options.command or { 'cantrip-acp' }
  return { command = command[1], args = vim.list_slice(command, 2), env = options.env or {} }
end

return M
