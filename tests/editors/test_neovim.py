"""Neovim, headless, with the plugin of ``editors/neovim`` as it is installed, and the real language server."""

from tests.editors.driving import Neovim


def test_what_is_wrong_is_said(neovim: Neovim) -> None:
    said = neovim.does("""
        open('broken.cantrip.yaml')
        report('type', vim.bo.filetype)
        report('found', await('diagnostics', function()
          local found = vim.diagnostic.get(0)
          return #found > 0 and found
        end))
    """)
    assert said["type"] == "yaml.cantrip"
    (found,) = said["found"]
    assert (found["lnum"], found["severity"], found["source"]) == (6, 1, "cantrip")
    assert "conversation" in found["message"]


def test_toml_too(neovim: Neovim) -> None:
    said = neovim.does("""
        open('broken.cantrip.toml')
        report('type', vim.bo.filetype)
        report('found', await('diagnostics', function()
          local found = vim.diagnostic.get(0)
          return #found > 0 and found
        end))
    """)
    assert said["type"] == "toml.cantrip"
    assert any("max_turns" in each["message"] for each in said["found"])


def test_completing_and_hovering(neovim: Neovim) -> None:
    said = neovim.does("""
        open('count.cantrip.yaml')
        -- what Ctrl-X Ctrl-O and completion plugins ask
        vim.api.nvim_buf_set_lines(0, 9, 10, true, { '    - max_tur' })
        report('completion', ask('textDocument/completion', 9, 13))
        vim.cmd.undo()
        vim.api.nvim_win_set_cursor(0, { 10, 8 })
        vim.lsp.buf.hover()
        report('hover', await('a window', function()
          for _, window in ipairs(vim.api.nvim_list_wins()) do
            if vim.api.nvim_win_get_config(window).relative ~= '' then
              return vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(window), 0, -1, true)
            end
          end
        end))
    """)
    items = said["completion"]["items"] if isinstance(said["completion"], dict) else said["completion"]
    assert "max_turns" in [item["label"] for item in items]
    assert "max_turns" in "\n".join(said["hover"])
