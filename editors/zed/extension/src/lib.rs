//! Starts `cantrip lsp` for recipes and looms: what the settings name, else what is on the worktree's PATH.

use zed_extension_api::{self as zed, serde_json, settings::LspSettings, LanguageServerId, Result};

struct Cantrip;

impl zed::Extension for Cantrip {
    fn new() -> Self {
        Cantrip
    }

    fn language_server_command(
        &mut self,
        language_server_id: &LanguageServerId,
        worktree: &zed::Worktree,
    ) -> Result<zed::Command> {
        let binary = LspSettings::for_worktree(language_server_id.as_ref(), worktree)
            .ok()
            .and_then(|settings| settings.binary);
        let (path, arguments, variables) = match binary {
            Some(binary) => (binary.path, binary.arguments, binary.env),
            None => (None, None, None),
        };
        // A name alone is looked up where the worktree's shell would look.
        let command = match path {
            Some(path) if path.contains(['/', '\\']) => path,
            named => {
                let name = named.unwrap_or_else(|| "cantrip".to_string());
                worktree.which(&name).ok_or_else(|| {
                    format!(
                        "no program {name:?} on PATH: `pipx install '.[editor]'` in a clone of Cantrip, or name it in the settings: \
                         \"lsp\": {{\"cantrip\": {{\"binary\": {{\"path\": \"/path/to/cantrip\", \"arguments\": [\"lsp\"]}}}}}}"
                    )
                })?
            }
        };
        let mut env = worktree.shell_env();
        env.extend(variables.into_iter().flatten());
        Ok(zed::Command {
            command,
            args: arguments.unwrap_or_else(|| vec!["lsp".to_string()]),
            env,
        })
    }

    fn language_server_initialization_options(
        &mut self,
        language_server_id: &LanguageServerId,
        worktree: &zed::Worktree,
    ) -> Result<Option<serde_json::Value>> {
        Ok(
            LspSettings::for_worktree(language_server_id.as_ref(), worktree)
                .ok()
                .and_then(|settings| settings.initialization_options),
        )
    }
}

zed::register_extension!(Cantrip);
