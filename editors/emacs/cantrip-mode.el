;;; cantrip-mode.el --- Recipes and looms of Cantrip  -*- lexical-binding: t; -*-

;; Copyright 2026 The cantrip-acp authors

;; Author: The cantrip-acp authors
;; Maintainer: The cantrip-acp authors
;; URL: https://github.com/cantrip-acp/cantrip-acp
;; Version: 0.1.0
;; Package-Requires: ((emacs "30.1"))
;; Keywords: languages, tools
;; SPDX-License-Identifier: Apache-2.0

;;; Commentary:

;; Modes for recipes (NAME.cantrip.yaml) and looms (NAME.loom.jsonl), with
;; the language server `cantrip lsp' by Eglot: what is
;; wrong while you type, completion, meanings, fixes.  Recipes are cast and looms
;; shown by commands of the server:
;;
;;   C-c C-c  cast this recipe         C-c C-k  end what runs
;;   C-c C-o  open the last loom       C-c C-r  what came of the last cast
;;   C-c C-l  choose a lens            C-c C-x  any command of the server
;;
;; Set up:
;;
;;   (use-package cantrip-mode
;;     :load-path "~/src/cantrip-acp/editors/emacs"
;;     :hook ((cantrip-mode cantrip-loom-mode) . cantrip-ensure))

;;; Code:

(require 'browse-url)
(require 'eglot)
(require 'jsonrpc)
(require 'prog-mode)
(require 'seq)
(require 'treesit)

(declare-function yaml-mode "ext:yaml-mode" ())
(declare-function yaml-ts-mode "yaml-ts-mode" ())

(defgroup cantrip nil
  "Recipes and looms of Cantrip."
  :group 'languages
  :prefix "cantrip-")

(defcustom cantrip-program '("cantrip" "lsp")
  "The command that starts the language server."
  :type '(repeat string))

(defcustom cantrip-largest-loom (* 32 1024 1024)
  "Bytes up to which a loom is given to the language server.
A larger one is looked at with `cantrip-open-loom'."
  :type 'natnum)

;;; Modes

(defvar cantrip--keywords
  `((,(rx bol (* (any " -")) (group (+ (any alnum "_."))) (* blank) ":" (or blank eol))
     1 'font-lock-variable-name-face)
    (,(rx (any "{,[ ") (group (+ (any alnum "_"))) ":" (or blank eol))
     1 'font-lock-variable-name-face)
    (,(rx (any "&*") (group (+ (any alnum "_-")))) 1 'font-lock-constant-face)
    (,(rx symbol-start (or "true" "false" "null") symbol-end) . 'font-lock-constant-face))
  "What stands out in a recipe where no YAML mode is at hand.")

(defvar cantrip-mode-syntax-table
  (let ((table (make-syntax-table)))
    (modify-syntax-entry ?# "<" table)
    (modify-syntax-entry ?\n ">" table)
    (modify-syntax-entry ?\" "\"" table)
    (modify-syntax-entry ?_ "_" table)
    table)
  "Syntax of recipes where no YAML mode is at hand.")

(defvar-keymap cantrip-command-map
  :doc "Keys of Cantrip's commands, below \\`C-c'."
  "C-c" #'cantrip-cast
  "C-k" #'cantrip-stop
  "C-o" #'cantrip-open-loom
  "C-r" #'cantrip-last-result
  "C-l" #'cantrip-lens
  "C-x" #'cantrip-run)

(defun cantrip--yaml-base ()
  "The best mode for YAML that this Emacs has."
  (cond ((treesit-ready-p 'yaml t)
         (yaml-ts-mode))
        ((fboundp 'yaml-mode) (yaml-mode))
        (t (prog-mode)
           (set-syntax-table cantrip-mode-syntax-table)
           (setq-local comment-start "# "
                       comment-start-skip "#+[ \t]*"
                       indent-line-function #'cantrip-indent-line
                       font-lock-defaults '(cantrip--keywords)))))

(defun cantrip-indent-line ()
  "Indent as the line before, two columns deeper below an open key.
Called again, two columns less each time, and from the start at the margin."
  (interactive)
  (let* ((now (current-indentation))
         (most (save-excursion
                 (forward-line 0)
                 (skip-chars-backward " \t\n")
                 (forward-line 0)
                 (+ (current-indentation)
                    (if (looking-at-p (rx (* nonl) ":" (* blank) (? "#" (* nonl)) eol)) 2 0))))
         (next (cond ((not (eq this-command last-command)) most)
                     ((<= now 0) most)
                     (t (max 0 (- now 2))))))
    (if (<= (current-column) now)
        (indent-line-to next)
      (save-excursion (indent-line-to next)))))

(put 'cantrip--yaml-base 'derived-mode-parent 'prog-mode)

;;;###autoload
(define-derived-mode cantrip-mode cantrip--yaml-base "Cantrip"
  "Recipes in YAML.
\\<cantrip-mode-map>\\[cantrip-cast] casts the recipe.
\\[cantrip-stop] ends what runs.
\\[cantrip-open-loom] opens the loom of the last cast."
  :syntax-table nil
  (setq-local tab-width 2 indent-tabs-mode nil))

;;;###autoload
(define-derived-mode cantrip-loom-mode prog-mode "Loom"
  "Looms: a turn is a line.  Cantrip writes them; here they are read-only.
\\<cantrip-loom-mode-map>\\[cantrip-open-loom] opens the loom in the viewer."
  (setq-local truncate-lines t
              bidi-paragraph-direction 'left-to-right
              bidi-inhibit-bpa t
              font-lock-defaults nil)
  (setq buffer-read-only t))

(dolist (map (list cantrip-mode-map cantrip-loom-mode-map))
  (keymap-set map "C-c" cantrip-command-map))

;;;###autoload
(progn
  (add-to-list 'auto-mode-alist '("\\.cantrip\\.ya?ml\\'" . cantrip-mode))
  (add-to-list 'auto-mode-alist '("\\.loom\\.jsonl\\'" . cantrip-loom-mode)))

;;; The language server

(defun cantrip--contact (&optional _interactive)
  "The program and arguments of the language server, for Eglot."
  cantrip-program)

(add-to-list 'eglot-server-programs
             '(((cantrip-mode :language-id "cantrip")
                (cantrip-loom-mode :language-id "cantrip-loom"))
               . cantrip--contact))

;;;###autoload
(defun cantrip-ensure ()
  "Start the language server for this buffer, but not for a huge loom."
  (if (and (derived-mode-p 'cantrip-loom-mode) (> (buffer-size) cantrip-largest-loom))
      (message "This loom is large: %s shows it"
               (substitute-command-keys "\\[cantrip-open-loom]"))
    (eglot-ensure)))

(defvar cantrip--running nil
  "What runs: a list of (TOKEN SERVER NAME).")

(defvar cantrip--count 0
  "Of the commands that were run, for names of their progress.")

(defvar-local cantrip--intents nil
  "Intents that this recipe was cast on.")

(defun cantrip--server ()
  "The language server of this buffer; an error where there is none."
  (or (eglot-current-server)
      (user-error "No language server runs here; M-x cantrip-ensure starts it")))

(defun cantrip--uri ()
  "The address of this buffer's file."
  (if buffer-file-name
      (browse-url-file-url buffer-file-name)
    (user-error "This buffer visits no file")))

(defun cantrip-execute (name arguments &optional done)
  "Run the server's command NAME with ARGUMENTS, a plist, and go on at once.
DONE is called with the answer; without it the answer is shown.  The value is
the name of the progress, by which `cantrip-stop' ends it."
  (let* ((server (cantrip--server))
         ;; Answers come when another buffer may be current.
         (buffer (current-buffer))
         (token (format "cantrip-emacs-%d-%d" (emacs-pid) (setq cantrip--count (1+ cantrip--count))))
         (ended (lambda ()
                  (setq cantrip--running (assoc-delete-all token cantrip--running)))))
    (push (list token server name) cantrip--running)
    (jsonrpc-async-request
     server :workspace/executeCommand
     (list :command name :arguments (vector arguments) :workDoneToken token)
     :timeout nil
     :success-fn (lambda (answer)
                   (funcall ended)
                   (cantrip--in buffer (or done #'cantrip--show) answer))
     :error-fn (lambda (problem)
                 (funcall ended)
                 (cantrip--in buffer #'cantrip--failed problem
                              (lambda () (cantrip-execute name arguments done)))))
    token))

(defun cantrip--in (buffer function &rest arguments)
  "Call FUNCTION with ARGUMENTS in BUFFER, or where we are if that is gone."
  (with-current-buffer (if (buffer-live-p buffer) buffer (current-buffer))
    (apply function arguments)))

(defun cantrip--failed (problem again)
  "Say what PROBLEM is.
Where the server names a command that mends it (trust), ask, run it, and
call AGAIN."
  (let ((mend (plist-get (plist-get problem :data) :command)))
    (if (and mend (y-or-n-p (format "%s  %s? " (plist-get problem :message) (plist-get mend :title))))
        (cantrip-execute (plist-get mend :command) (elt (plist-get mend :arguments) 0)
                         (lambda (_) (funcall again)))
      (message "Cantrip: %s" (plist-get problem :message)))))

(defun cantrip--show (answer)
  "Say in the echo area what a command's ANSWER was."
  (let ((result (and (listp answer) (plist-get answer :result))))
    (message "Cantrip: %s"
             (string-join
              (delq nil
                    (cons (cond ((stringp result) result) (result (format "%S" result)))
                          (and (listp answer)
                               (seq-map (lambda (key)
                                          (when-let* ((value (plist-get answer key)))
                                            (format "%s %s" (substring (symbol-name key) 1) value)))
                                        '(:reason :turns :cost :loom :file :url)))))
              " · "))))

;;;###autoload
(defun cantrip-cast (intent)
  "Cast this buffer's recipe on INTENT, saved or not.
An empty one is that of before, or the first that the recipe notes."
  (interactive (list (read-string "Intent: " nil 'cantrip--intents)))
  (cantrip-execute "cantrip.cast"
                   (append (list :uri (cantrip--uri))
                           (unless (string-empty-p intent) (list :intent intent)))))

(defun cantrip-stop ()
  "End what was started here.  A cast answers with what it had come to."
  (interactive)
  (if (null cantrip--running)
      (message "Cantrip: nothing is running")
    (pcase-dolist (`(,token ,server ,_) cantrip--running)
      (if (jsonrpc-running-p server)
          (jsonrpc-notify server :window/workDoneProgress/cancel (list :token token))
        (setq cantrip--running (assoc-delete-all token cantrip--running))))))

(defun cantrip-last-result ()
  "Show what came of the last cast of this recipe."
  (interactive)
  (cantrip-execute "cantrip.lastResult" (list :uri (cantrip--uri)) #'ignore))

(defun cantrip-open-loom ()
  "Open this loom, or that of this recipe's last cast, in the viewer."
  (interactive)
  (if (derived-mode-p 'cantrip-loom-mode)
      (cantrip--view buffer-file-name)
    (cantrip-execute "cantrip.openLoom" (list :uri (cantrip--uri))
                     (lambda (answer) (message "Cantrip: %s" (plist-get answer :loom))))))

(defun cantrip--view (file)
  "Open the page of the loom FILE.
The server has it, or where none runs `cantrip loom view'."
  (if (eglot-current-server)
      (cantrip-execute "cantrip.loom.view" (list :uri (browse-url-file-url file)))
    (let ((name (format "*cantrip loom view %s*" (file-name-nondirectory file))))
      (unless (process-live-p (get-process name))
        (make-process :name name :buffer (get-buffer-create name) :noquery t
                      :command (list (car cantrip-program) "loom" "view" file)))
      (display-buffer (process-buffer (get-process name))))))

(defun cantrip-lens ()
  "Choose among the lenses of this file, and run one."
  (interactive)
  (let* ((server (cantrip--server))
         (lenses (jsonrpc-request server :textDocument/codeLens
                                  (list :textDocument (list :uri (cantrip--uri)))))
         (named (seq-keep
                 (lambda (lens)
                   (unless (plist-get lens :command)
                     (setq lens (jsonrpc-request server :codeLens/resolve lens)))
                   (when-let* ((command (plist-get lens :command)))
                     (cons (format "%d: %s"
                                   (1+ (plist-get (plist-get (plist-get lens :range) :start) :line))
                                   (plist-get command :title))
                           command)))
                 lenses)))
    (unless named
      (user-error "This file has no lenses"))
    (let ((command (cdr (assoc (completing-read "Lens: " named nil t) named))))
      (if (equal (plist-get command :command) "cantrip.castWith")
          (call-interactively #'cantrip-cast)
        (cantrip-execute (plist-get command :command)
                         (let ((arguments (plist-get command :arguments)))
                           (and (> (length arguments) 0) (elt arguments 0))))))))

(defun cantrip-run (name)
  "Run the server's command NAME on this file."
  (interactive
   (list (completing-read
          "Command: "
          (seq-into (plist-get (eglot-server-capable :executeCommandProvider) :commands) 'list)
          nil t)))
  (cantrip-execute name (list :uri (cantrip--uri))))

(provide 'cantrip-mode)
;;; cantrip-mode.el ends here
