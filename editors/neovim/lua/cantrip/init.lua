-- What the commands of plugin/cantrip.lua do. All work is the server's (workspace/executeCommand); here are progress, cancelling,
-- and the answer.
local M = {}

---@type table<string, { client: integer, name: string }> what runs, by the token of its progress
M.running = {}
---@type table<string, vim.SystemObj> pages that are served without the server, by their looms
M.views = {}
---@type any what the last command answered, for mappings and tests
M.last = nil

local count = 0

local function say(text, level)
  vim.notify('Cantrip: ' .. text, level or vim.log.levels.INFO)
end

--- The server of a buffer, or any that runs; nil, after saying why, where there is none.
function M.client(buffer)
  local found = vim.lsp.get_clients({ name = 'cantrip', bufnr = buffer })[1] or vim.lsp.get_clients({ name = 'cantrip' })[1]
  if not found then
    say('no language server runs here: open a recipe, and see :checkhealth cantrip', vim.log.levels.WARN)
  end
  return found
end

--- Run a command of the server. `done(error, answer)` is called at its end; without it the answer is shown.
function M.run(name, arguments, options)
  options = options or {}
  local buffer = options.buffer or vim.api.nvim_get_current_buf()
  local client = M.client(buffer)
  if not client then
    return
  end
  count = count + 1
  local token = ('cantrip-nvim-%d-%d'):format(vim.fn.getpid(), count)
  M.running[token] = { client = client.id, name = name }
  local params = { command = name, arguments = arguments or {}, workDoneToken = token }
  local sent = client:request('workspace/executeCommand', params, function(problem, answer)
    M.running[token] = nil
    M.last = answer
    if options.done then
      options.done(problem, answer)
    elseif problem then
      M.failed(problem, name, arguments, options)
    else
      M.show(answer)
    end
  end, buffer)
  if not sent then
    M.running[token] = nil
    say(name .. ' could not be sent: the language server has ended', vim.log.levels.ERROR)
  end
  return token
end

--- Say what went wrong; where the server names a command that mends it (trust), ask, run it, and try again.
function M.failed(problem, name, arguments, options)
  local mend = type(problem.data) == 'table' and problem.data.command
  if type(mend) ~= 'table' then
    say(problem.message, vim.log.levels.ERROR)
    return
  end
  vim.ui.select({ mend.title, 'Leave it' }, { prompt = problem.message }, function(_, choice)
    if choice == 1 then
      M.run(mend.command, mend.arguments, {
        buffer = options.buffer,
        done = function(refused)
          if refused then
            say(refused.message, vim.log.levels.ERROR)
          else
            M.run(name, arguments, options)
          end
        end,
      })
    end
  end)
end

--- Say what a command answered, in a few words.
function M.show(answer)
  if type(answer) ~= 'table' then
    if answer ~= nil and answer ~= vim.NIL then
      say(tostring(answer))
    end
    return
  end
  local words = {}
  local result = answer.result
  if result ~= nil and result ~= vim.NIL then
    words[#words + 1] = type(result) == 'string' and result or vim.json.encode(result)
  end
  for _, key in ipairs({ 'reason', 'turns', 'cost', 'loom', 'file', 'url' }) do
    local value = answer[key]
    if value ~= nil and value ~= vim.NIL and type(value) ~= 'table' then
      words[#words + 1] = ('%s %s'):format(key, value)
    end
  end
  if #words > 0 then
    say(table.concat(words, ' · '))
  end
end

--- Cast a buffer's recipe, saved or not. Without an intent it is asked for; an empty one is that of before, or the first that
--- the recipe notes (`# intent: Say hello.`).
function M.cast(intent, buffer)
  buffer = buffer or vim.api.nvim_get_current_buf()
  if intent == nil then
    vim.ui.input({ prompt = 'Intent: ' }, function(text)
      if text then
        M.cast(text, buffer)
      end
    end)
    return
  end
  local about = { uri = vim.uri_from_bufnr(buffer), intent = intent ~= '' and intent or nil }
  return M.run('cantrip.cast', { about }, { buffer = buffer })
end

--- Open a loom's page: of a file, of this buffer, or of this recipe's last cast.
function M.view(file)
  if not file and not vim.api.nvim_buf_get_name(0):match('%.loom%.jsonl$') then
    return M.run('cantrip.openLoom', { { uri = vim.uri_from_bufnr(0) } }, {
      done = function(problem, answer)
        if problem then
          say(problem.message, vim.log.levels.ERROR)
        else
          M.view(answer.loom)
        end
      end,
    })
  end
  file = vim.fn.fnamemodify(file or vim.api.nvim_buf_get_name(0), ':p')
  if vim.lsp.get_clients({ name = 'cantrip' })[1] then
    return M.run('cantrip.loom.view', { { uri = vim.uri_from_fname(file) } })
  end
  -- No server runs (the loom is large, say): the same page, served until Neovim ends.
  local config = vim.lsp.config.cantrip
  local program = config and type(config.cmd) == 'table' and config.cmd[1] or 'cantrip'
  M.views[file] = vim.system({ program, 'loom', 'view', file }, { text = true }, function(done)
    if done.code ~= 0 and done.signal == 0 then
      vim.schedule(function()
        say(vim.trim(done.stderr or ''), vim.log.levels.ERROR)
      end)
    end
  end)
end

--- End everything that this editor has under way. A cast answers with what it had come to.
function M.cancel()
  if next(M.running) == nil then
    say('nothing is running')
  end
  for token, run in pairs(M.running) do
    local client = vim.lsp.get_client_by_id(run.client)
    if client then
      client:notify('window/workDoneProgress/cancel', { token = token })
    else
      M.running[token] = nil
    end
  end
end

--- Run a command by its name, with its arguments as JSON, or with this buffer's address where there are none.
function M.run_text(name, text)
  local arguments = { { uri = vim.uri_from_bufnr(0) } }
  if text ~= '' then
    local good, value = pcall(vim.json.decode, text)
    if not good then
      say('the arguments are no JSON: ' .. text, vim.log.levels.ERROR)
      return
    end
    arguments = vim.islist(value) and value or { value }
  end
  return M.run(name, arguments)
end

--- The server's commands that begin with `lead`.
function M.names(lead)
  local client = vim.lsp.get_clients({ name = 'cantrip' })[1]
  local offered = client and vim.tbl_get(client, 'server_capabilities', 'executeCommandProvider', 'commands') or {}
  return vim.tbl_filter(function(name)
    return vim.startswith(name, lead)
  end, offered)
end

--- What a lens or an action asks for is run as our own commands are: with progress, an end, and its answer shown.
function M.started(client)
  setmetatable(client.commands, {
    __index = function(_, name)
      if type(name) == 'string' and vim.startswith(name, 'cantrip.') then
        return function(command, context)
          if name == 'cantrip.castWith' then
            return M.cast(nil, context.bufnr)
          end
          M.run(command.command, command.arguments, { buffer = context.bufnr })
        end
      end
    end,
  })
end

--- Lenses, hints and progress in a buffer, as far as the server has them and you did not say no.
function M.attached(client, buffer)
  if client:supports_method('textDocument/inlayHint') and vim.g.cantrip_inlay_hints ~= false then
    vim.lsp.inlay_hint.enable(true, { bufnr = buffer })
  end
  if client:supports_method('textDocument/codeLens') and vim.g.cantrip_code_lens ~= false then
    if vim.lsp.codelens.enable then -- Neovim 0.12 refreshes them by itself
      vim.lsp.codelens.enable(true, { bufnr = buffer })
    else
      vim.lsp.codelens.refresh({ bufnr = buffer })
      vim.api.nvim_create_autocmd({ 'BufEnter', 'BufWritePost', 'InsertLeave' }, {
        buffer = buffer,
        callback = function()
          vim.lsp.codelens.refresh({ bufnr = buffer })
        end,
      })
    end
  end
end

local group = vim.api.nvim_create_augroup('cantrip', { clear = true })

vim.api.nvim_create_autocmd('LspProgress', {
  group = group,
  callback = function(event)
    local client = vim.lsp.get_client_by_id(event.data.client_id)
    local value = event.data.params.value
    if not client or client.name ~= 'cantrip' or vim.g.cantrip_progress == false or type(value) ~= 'table' then
      return
    end
    local text = value.message or value.title
    if text and text ~= '' then
      vim.api.nvim_echo({ { 'Cantrip: ' .. text } }, false, {})
    end
  end,
})

-- A server that ended answers nothing more.
vim.api.nvim_create_autocmd('LspDetach', {
  group = group,
  callback = function(event)
    for token, run in pairs(M.running) do
      local client = vim.lsp.get_client_by_id(run.client)
      if not client or client:is_stopped() then
        M.running[token] = nil
      end
    end
  end,
})

return M
