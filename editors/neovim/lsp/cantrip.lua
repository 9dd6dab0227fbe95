-- Neovim 0.11 and later: found by name in 'runtimepath', started by vim.lsp.enable('cantrip').
-- Change any of it in your init.lua: vim.lsp.config('cantrip', { cmd = { '/path/to/cantrip', 'lsp' } })

---@type vim.lsp.Config
return {
  cmd = { 'cantrip', 'lsp' },
  filetypes = { 'yaml.cantrip', 'jsonl.cantrip' },
  root_dir = function(buffer, start)
    -- Neovim sends a server whole files. One that is larger than this is looked at with :CantripView alone.
    local size = vim.fn.getfsize(vim.api.nvim_buf_get_name(buffer))
    if size > (vim.g.cantrip_largest_file or 32 * 1024 * 1024) then
      return
    end
    start(vim.fs.root(buffer, { '.cantrip', '.git' }))
  end,
  on_init = function(client)
    require('cantrip').started(client)
  end,
  on_attach = function(client, buffer)
    require('cantrip').attached(client, buffer)
  end,
}
