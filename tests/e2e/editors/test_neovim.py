"""Neovim, headless, with the plugin of ``editors/neovim`` as it is installed, and the real language server."""

from pathlib import Path

import pytest

from tests.e2e.editors.conftest import RECIPE, SCRIPT
from tests.e2e.editors.editor_processes import Neovim

# The first one may have to load the editors.
pytestmark = pytest.mark.timeout(400)


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


def test_casting_with_progress(neovim: Neovim) -> None:
    said = neovim.does("""
        local told = {}
        vim.api.nvim_create_autocmd('LspProgress', { callback = function(event)
          table.insert(told, event.data.params.value.message)
        end })
        open('count.cantrip.yaml')
        vim.api.nvim_buf_set_lines(0, -1, -1, true, { '# not saved' })
        vim.cmd('CantripCast Count the words.')
        report('answer', await('the end of a cast', function() return require('cantrip').last end))
        report('told', told)
        report('modified', vim.bo.modified)
        report('left', vim.tbl_count(require('cantrip').running))
        await('the lens of its result', function()
          for _, lens in ipairs(ask('textDocument/codeLens', 0, 0)) do
            if lens.command.title:match('three words') then return true end
          end
        end)
    """)
    assert (said["answer"]["result"], said["answer"]["reason"]) == ("three words", "done")
    assert any("2 turns" in each for each in said["told"]), said["told"]
    assert said["modified"], "what is not saved is cast all the same"
    assert said["left"] == 0
    assert any("three words" in each for each in said["messages"])


def test_a_lens_is_run_and_a_cast_is_ended(neovim: Neovim) -> None:
    said = neovim.does("""
        vim.ui.input = function(_, done) done('Take your time.') end
        vim.ui.select = function(items, _, done)
          for i, each in ipairs(items) do
            if vim.inspect(each):match('Cast with') then return done(each, i) end
          end
        end
        open('slow.cantrip.yaml')
        await('lenses', function() return #vim.lsp.codelens.get(vim.lsp.codelens.enable and { bufnr = 0 } or 0) > 0 end)
        vim.api.nvim_win_set_cursor(0, { 1, 0 })
        vim.lsp.codelens.run()
        report('running', await('a cast', function() return next(require('cantrip').running) end))
        await('a sign of it', function()
          for _, lens in ipairs(ask('textDocument/codeLens', 0, 0)) do
            if lens.command.command == 'cantrip.stop' then return true end
          end
        end)
        vim.cmd.CantripCancel()
        report('answer', await('the end', function() return require('cantrip').last end))
    """)
    assert said["running"].startswith("cantrip-nvim-")
    assert said["answer"]["reason"] == "cancelled"


def test_trust_is_asked_for_and_the_cast_goes_on(neovim: Neovim) -> None:
    folder = neovim.folder / ".cantrip"
    folder.mkdir()
    (folder / "count.cantrip.yaml").write_text(f"{RECIPE}    - bash_network: true\n")
    (folder / "count.script.yaml").write_text(SCRIPT)
    said = neovim.does("""
        local asked = {}
        vim.ui.select = function(items, options, done)
          table.insert(asked, { items = items, prompt = options.prompt })
          done(items[1], 1)
        end
        open('.cantrip/count.cantrip.yaml')
        vim.cmd('CantripCast Count the words.')
        report('answer', await('the end of a cast', function()
          return vim.tbl_get(require('cantrip'), 'last', 'result')
        end))
        report('asked', asked)
    """)
    assert said["answer"] == "three words"
    (asked,) = said["asked"]
    assert asked["items"][0] == "Trust this recipe"
    assert "bash_network" in asked["prompt"]


def test_a_loom_is_read_forked_and_shown(neovim: Neovim) -> None:
    said = neovim.does("""
        local shown
        vim.ui.open = function(address) shown = address end
        open('count.cantrip.yaml')
        vim.cmd('CantripCast Count the words.')
        local cast = await('the end of a cast', function() return require('cantrip').last end)
        vim.cmd('CantripRun cantrip.openLoom')
        await('the loom', function() return vim.api.nvim_buf_get_name(0) == vim.uv.fs_realpath(cast.loom) end)
        report('type', vim.bo.filetype)
        await('its server', function() return vim.lsp.get_clients({ bufnr = 0, name = 'cantrip' })[1] end)
        local fork = await('a lens to fork', function()
          for _, lens in ipairs(ask('textDocument/codeLens', 0, 0) or {}) do
            if lens.command and lens.command.command == 'cantrip.loom.fork' then return lens.command end
          end
        end)
        report('symbols', ask('textDocument/documentSymbol', 0, 0))
        report('fork', fork.title)
        vim.cmd('CantripView')
        report('page', await('the page', function() return shown end))
        local got = vim.system({ 'python', '-c', 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).status)',
          (shown:gsub('#.*', '')) }, { text = true }):wait()
        report('status', vim.trim(got.stdout) .. got.stderr)
    """)
    assert said["type"] == "jsonl.cantrip"
    assert "Fork" in said["fork"]
    assert said["page"].startswith("http://127.0.0.1:")
    assert said["status"] == "200"
    assert "Count the words." in str(said["symbols"])


def test_a_large_loom_is_not_sent(neovim: Neovim) -> None:
    (neovim.folder / "large.loom.jsonl").write_text('{"type": "loom"}\n' * 1000)
    said = neovim.does(
        """
        vim.cmd.edit('large.loom.jsonl')
        vim.wait(1500, function() return #vim.lsp.get_clients() > 0 end)
        report('servers', #vim.lsp.get_clients())
        report('wrap', vim.wo.wrap)
        vim.cmd('CantripView')
        report('served', vim.tbl_keys(require('cantrip').views))
        for _, view in pairs(require('cantrip').views) do view:kill('sigterm') end
        """,
        init="vim.g.cantrip_largest_file = 1000",
    )
    assert (said["servers"], said["wrap"]) == (0, False)
    assert [Path(each).name for each in said["served"]] == ["large.loom.jsonl"]


def test_its_health(neovim: Neovim) -> None:
    said = neovim.does("""
        open('count.cantrip.yaml')
        vim.cmd('checkhealth cantrip')
        report('lines', vim.api.nvim_buf_get_lines(0, 0, -1, true))
        report('commands', vim.fn.getcompletion('CantripRun cantrip.', 'cmdline'))
    """)
    lines = "\n".join(said["lines"])
    assert "OK" in lines
    assert "ERROR" not in lines
    assert {"cantrip.cast", "cantrip.openLoom"} <= set(said["commands"])


def test_a_program_that_is_not_there_is_named(neovim: Neovim) -> None:
    said = neovim.does(
        """
        vim.cmd.edit('count.cantrip.yaml')
        vim.cmd('checkhealth cantrip')
        report('lines', vim.api.nvim_buf_get_lines(0, 0, -1, true))
        vim.cmd('CantripCast Count.')
        """,
        init="vim.lsp.config('cantrip', { cmd = { 'cantrip-elsewhere', 'lsp' } })",
    )
    assert "no program 'cantrip-elsewhere'" in "\n".join(said["lines"])
    assert any("checkhealth" in each for each in said["messages"])
