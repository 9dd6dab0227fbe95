"""Emacs 30, in batch mode, with the files of ``editors/emacs``, its own Eglot, and the real language server."""

import shutil

import pytest

from tests.e2e.editors.conftest import RECIPE, SCRIPT
from tests.e2e.editors.editor_processes import FILES, Emacs

# The first one may have to load the editors.
pytestmark = pytest.mark.timeout(400)

SOURCES = ("cantrip-mode.el", "cantrip-agent-shell.el")


def test_what_is_wrong_is_said(emacs: Emacs) -> None:
    said = emacs.does("""
        (open "broken.cantrip.yaml")
        (report "mode" (symbol-name major-mode))
        (let ((found (await "diagnostics" (lambda () (flymake-start) (flymake-diagnostics)))))
          (report "found" (vconcat (mapcar (lambda (d)
                                             (list :line (line-number-at-pos (flymake-diagnostic-beg d))
                                                   :text (flymake-diagnostic-text d)))
                                           found))))
    """)
    assert said["mode"] == "cantrip-mode"
    (found,) = said["found"]
    assert found["line"] == 7
    assert "conversation" in found["text"]


def test_completing_and_hovering(emacs: Emacs) -> None:
    said = emacs.does("""
        (open "count.cantrip.yaml")
        (goto-char (point-min))
        (search-forward "max_tur")
        (let (told)
          (eglot-hover-eldoc-function (lambda (text &rest _) (setq told text)))
          (report "hover" (substring-no-properties (await "a hover" (lambda () told)))))
        (delete-region (point) (line-end-position))
        (let* ((found (eglot-completion-at-point))
               (typed (buffer-substring-no-properties (car found) (cadr found))))
          (report "completion" (vconcat (mapcar #'substring-no-properties
                                                (all-completions typed (caddr found))))))
    """)
    assert "max_turns" in [each.strip() for each in said["completion"]]
    assert "max_turns" in said["hover"]


def test_casting_with_progress(emacs: Emacs) -> None:
    said = emacs.does("""
        (open "count.cantrip.yaml")
        (goto-char (point-max))
        (insert "# not saved\n")
        (let (told answer)
          (cl-letf (((symbol-function 'eglot--update-mode-line-progress) #'ignore))
            (advice-add 'eglot-handle-notification :before
                        (lambda (_ method &rest rest)
                          (when (eq method '$/progress)
                            (push (plist-get (plist-get rest :value) :message) told))))
            (cantrip-execute "cantrip.cast" (list :uri (cantrip--uri) :intent "Count the words.")
                             (lambda (it) (setq answer it)))
            (await "the end of a cast" (lambda () answer)))
          (report "answer" answer)
          (report "told" (vconcat (delq nil told)))
          (report "left" (length cantrip--running)))
        (call-interactively #'cantrip-last-result)
    """)
    assert (said["answer"]["result"], said["answer"]["reason"]) == ("three words", "done")
    assert any("2 turns" in each for each in said["told"]), said["told"]
    assert said["left"] == 0


def test_trust_is_asked_for_and_the_cast_goes_on(emacs: Emacs) -> None:
    folder = emacs.folder / ".cantrip"
    folder.mkdir()
    (folder / "count.cantrip.yaml").write_text(f"{RECIPE}    - bash_network: true\n")
    (folder / "count.script.yaml").write_text(SCRIPT)
    said = emacs.does("""
        (open ".cantrip/count.cantrip.yaml")
        (let (asked answer)
          (cl-letf (((symbol-function 'y-or-n-p) (lambda (text) (push text asked) t)))
            (cantrip-execute "cantrip.cast" (list :uri (cantrip--uri) :intent "Count the words.")
                             (lambda (it) (setq answer it)))
            (report "answer" (plist-get (await "the end of a cast" (lambda () answer)) :result)))
          (report "asked" (vconcat asked)))
    """)
    assert said["answer"] == "three words"
    (asked,) = said["asked"]
    assert "bash_network" in asked
    assert "Trust this recipe?" in asked


def test_a_loom_is_read_and_shown(emacs: Emacs) -> None:
    said = emacs.does("""
        (let (answer shown)
          (advice-add 'browse-url :override (lambda (address &rest _) (setq shown address)))
          (open "count.cantrip.yaml")
          (cantrip-execute "cantrip.cast" (list :uri (cantrip--uri) :intent "Count the words.")
                           (lambda (it) (setq answer it)))
          (await "the end of a cast" (lambda () answer))
          (cantrip-open-loom)
          (open (plist-get answer :loom))
          (report "mode" (symbol-name major-mode))
          (report "readonly" (if buffer-read-only 1 0))
          (await "a lens to fork"
                 (lambda ()
                   (seq-find (lambda (lens) (equal (plist-get (plist-get lens :command) :command) "cantrip.loom.fork"))
                             (jsonrpc-request (eglot-current-server) :textDocument/codeLens
                                              (list :textDocument (list :uri (cantrip--uri)))))))
          (cantrip-open-loom)
          (report "page" (await "the page" (lambda () shown)))
          (report "status" (with-current-buffer (url-retrieve-synchronously (car (split-string shown "#")) t t 30)
                             (buffer-substring (point-min) (progn (goto-char (point-min)) (line-end-position))))))
    """)
    assert (said["mode"], said["readonly"]) == ("cantrip-loom-mode", 1)
    assert said["page"].startswith("http://127.0.0.1:")
    assert "200" in said["status"]


def test_a_lens_is_chosen_and_a_cast_is_ended(emacs: Emacs) -> None:
    said = emacs.does("""
        (open "slow.cantrip.yaml")
        (let (shown)
          (advice-add 'cantrip--show :before (lambda (answer) (setq shown answer)))
          (cl-letf (((symbol-function 'read-string) (lambda (&rest _) "Take your time."))
                    ((symbol-function 'completing-read)
                     (lambda (_ named &rest _)
                       (report "lenses" (vconcat (mapcar #'car named)))
                       (car (seq-find (lambda (each) (string-search "with" (car each))) named)))))
            (cantrip-lens))
          (report "running" (length cantrip--running))
          (await "a sign of the cast"
                 (lambda ()
                   (seq-find (lambda (lens) (equal (plist-get (plist-get lens :command) :command) "cantrip.stop"))
                             (jsonrpc-request (eglot-current-server) :textDocument/codeLens
                                              (list :textDocument (list :uri (cantrip--uri)))))))
          (cantrip-stop)
          (report "answer" (await "the end" (lambda () shown))))
    """)
    assert "Cast with…" in " ".join(said["lenses"])
    assert said["running"] == 1
    assert said["answer"]["reason"] == "cancelled"


@pytest.mark.parametrize("source", SOURCES)
def test_it_compiles_without_a_warning(emacs: Emacs, source: str) -> None:
    for each in SOURCES:
        shutil.copy(FILES / "emacs" / each, emacs.folder)
    done = emacs.run(
        "-L", ".", "--eval", "(setq byte-compile-error-on-warn t)", "-f", "batch-byte-compile", source
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("source", SOURCES)
def test_its_documentation_is_as_emacs_wants_it(emacs: Emacs, source: str) -> None:
    done = emacs.run("--eval", f'(checkdoc-file "{FILES / "emacs" / source}")')
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_could_be_a_package(emacs: Emacs) -> None:
    lisp = next(emacs.root.path.glob("usr/share/emacs/site-lisp/elpa-src/package-lint-*"))
    done = emacs.run(
        "-L", str(lisp), "-l", "package-lint",
        "--eval", f'(setq package-lint-main-file "{FILES / "emacs" / SOURCES[0]}")',
        "-f", "package-lint-batch-and-exit", *(str(FILES / "emacs" / each) for each in SOURCES),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
