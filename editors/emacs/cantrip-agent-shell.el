;;; cantrip-agent-shell.el --- Cantrip's agent in agent-shell  -*- lexical-binding: t; -*-

;; Copyright 2026 The cantrip-acp authors

;; Author: The cantrip-acp authors
;; Maintainer: The cantrip-acp authors
;; URL: https://github.com/cantrip-acp/cantrip-acp
;; Keywords: tools
;; SPDX-License-Identifier: Apache-2.0

;;; Commentary:

;; M-x cantrip-agent-shell opens a conversation with the agent `cantrip-acp', in
;; the package agent-shell (which speaks the Agent Client Protocol by acp.el).
;; To have it among what M-x agent-shell offers:
;;
;;   (add-to-list 'agent-shell-agent-configs (cantrip-agent-shell-config))

;;; Code:

(declare-function acp-make-client "ext:acp" (&rest rest))
(declare-function agent-shell-make-agent-config "ext:agent-shell" (&rest rest))
(declare-function agent-shell-start "ext:agent-shell" (&rest rest))

(defgroup cantrip-agent-shell nil
  "Cantrip's agent in agent-shell."
  :group 'tools
  :prefix "cantrip-agent-shell-")

(defcustom cantrip-agent-shell-command '("cantrip-acp")
  "The command that starts the agent, such as (\"cantrip-acp\" \"--recipe\" \"greeter\")."
  :type '(repeat string))

(defcustom cantrip-agent-shell-environment nil
  "Variables for the agent, such as \"CANTRIP_CRYSTAL=anthropic:claude-sonnet-5-5\"."
  :type '(repeat string))

(defun cantrip-agent-shell-make-client (buffer)
  "Make a client of acp.el for BUFFER."
  (acp-make-client :command (car cantrip-agent-shell-command)
                   :command-params (cdr cantrip-agent-shell-command)
                   :environment-variables cantrip-agent-shell-environment
                   :context-buffer buffer))

(defun cantrip-agent-shell-config ()
  "What agent-shell wants to know of an agent."
  (agent-shell-make-agent-config
   :identifier 'cantrip
   :mode-line-name "Cantrip"
   :buffer-name "Cantrip"
   :shell-prompt "Cantrip> "
   :shell-prompt-regexp "Cantrip> "
   :client-maker #'cantrip-agent-shell-make-client
   :install-instructions "pipx install '.[editor]' in a clone of Cantrip, then cantrip doctor"))

;;;###autoload
(defun cantrip-agent-shell ()
  "Talk to Cantrip's agent about the current project."
  (interactive)
  (unless (require 'agent-shell nil t)
    (user-error "Install the package agent-shell (MELPA) first"))
  (agent-shell-start :config (cantrip-agent-shell-config)))

(provide 'cantrip-agent-shell)
;;; cantrip-agent-shell.el ends here
