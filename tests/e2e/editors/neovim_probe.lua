-- Runs $PROBE_SCRIPT in Neovim and writes to $PROBE_ANSWER, as JSON, what it reports.
local said = vim.empty_dict()
local messages = {}

vim.notify = function(text)
  messages[#messages + 1] = text
end

function report(name, value)
  said[name] = value == nil and vim.NIL or value
end

--- Waits until `ready` returns something, and returns it.
function await(what, ready, milliseconds)
  local found
  local good = vim.wait(milliseconds or 60000, function()
    found = ready()
    return found
  end, 20)
  if not good then
    error('waited in vain for ' .. what .. '; told so far: ' .. vim.inspect(messages))
  end
  return found
end

function open(name)
  vim.cmd.edit(name)
  return await('the language server', function()
    return vim.lsp.get_clients({ bufnr = 0, name = 'cantrip' })[1]
  end)
end

--- Asks the server about a place of the buffer, counted from zero.
function ask(method, line, character)
  local client = vim.lsp.get_clients({ bufnr = 0, name = 'cantrip' })[1]
  local params = { textDocument = { uri = vim.uri_from_bufnr(0) }, position = { line = line, character = character } }
  local answer, problem = client:request_sync(method, params, 60000, 0)
  assert(answer, problem)
  assert(not answer.err, vim.inspect(answer.err))
  return answer.result
end

vim.schedule(function()
  local good, why = xpcall(dofile, debug.traceback, vim.env.PROBE_SCRIPT)
  if not good then
    said.error = tostring(why)
  end
  report('messages', messages)
  local file = assert(io.open(vim.env.PROBE_ANSWER, 'w'))
  file:write(vim.json.encode(said))
  file:close()
  vim.cmd('qall!')
end)
