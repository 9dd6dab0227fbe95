import { execFile } from "node:child_process";
import * as vscode from "vscode";
import type { Agent, EmbeddedModel, KeyProvider } from "../acp/agent";
import type { AgentCommand } from "../acp/command";
import { words } from "../acp/errors";
import { modelDetail, PROVIDERS } from "./state";

/** A row of the list: what to do when it is chosen. Returns the model that is used then, or undefined if the user stops. */
interface Way extends vscode.QuickPickItem {
  readonly take?: () => Promise<string | undefined>;
}

/** Those that most people have a key of; the others have a list of their own. */
const COMMON = ["anthropic", "openai", "google", "openrouter"];
const LONGEST_ERROR = 300;

/**
 * Let the user choose a model: one of this machine, one of a provider by its key, or one of a server by its address. The agent
 * keeps what was chosen, for new sessions too. Returns the model (`ollama:qwen3`), or undefined if the user stops.
 */
export async function signIn(agent: Agent, program: () => Promise<AgentCommand>): Promise<string | undefined> {
  const dialog = new SignIn(agent, program);
  for (;;) {
    const picked = await vscode.window.showQuickPick(dialog.ways(), { title: "Choose a model", placeHolder: "Use a model of this machine, or give a key", ignoreFocusOut: true, matchOnDetail: true, matchOnDescription: true });
    if (picked?.take === undefined) return undefined;
    try {
      const chosen = await picked.take();
      if (chosen !== undefined) return chosen;
    } catch (problem) {
      // A question, not a message: the list comes again after it.
      const again = "Choose Again";
      const asked = await vscode.window.showWarningMessage("That did not work.", { modal: true, detail: words(problem) }, again);
      if (asked !== again) return undefined;
    }
  }
}

class SignIn {
  constructor(
    private readonly agent: Agent,
    private readonly program: () => Promise<AgentCommand>,
  ) {}

  async ways(): Promise<Way[]> {
    const [local, { providers, embedded }] = await Promise.all([this.agent.localModels(), this.agent.signInList()]);
    // One that has a key already is near.
    const near = providers.filter((each) => COMMON.includes(each.provider) || each.hasKey);
    const others = providers.filter((each) => !near.includes(each));
    const separator = (label: string): Way => ({ label, kind: vscode.QuickPickItemKind.Separator });
    return [
      ...(local.length > 0 ? [separator("on this machine, without a key")] : []),
      ...local.map(
        (model): Way => ({
          label: `$(device-desktop) ${model.name}`,
          description: PROVIDERS[model.provider] ?? model.provider,
          detail: modelDetail(model),
          take: async () => {
            await this.agent.authenticate("local", model.crystal);
            return model.crystal;
          },
        }),
      ),
      separator("with a key"),
      ...near.map((each) => this.provider(each)),
      ...(others.length > 0 ? [{ label: "$(ellipsis) More providers…", description: others.map(nameOf).join(", "), take: () => this.ofOthers(others) }] : []),
      separator("a server of your own"),
      { label: "$(server) OpenAI-compatible address…", description: "vLLM, LiteLLM, llama.cpp, a gateway", take: () => this.withAddress() },
      ...(embedded.length > 0 ? [separator("only to look around")] : []),
      ...embedded.map(
        (each): Way => ({ label: "$(beaker) Try without a key", description: each.here ? "" : `downloads ${megabytes(each.bytes)}`, detail: each.about, take: () => this.withEmbedded(each) }),
      ),
    ];
  }

  private provider(each: KeyProvider): Way {
    return { label: `$(key) ${nameOf(each)}`, description: each.hasKey ? "has a key" : "", take: () => this.withKey(each) };
  }

  private async ofOthers(others: readonly KeyProvider[]): Promise<string | undefined> {
    const picked = await vscode.window.showQuickPick(others.map((each) => this.provider(each)), { title: "Choose a provider", ignoreFocusOut: true });
    return picked?.take?.();
  }

  private async withKey({ provider, hasKey, needsModel }: KeyProvider): Promise<string | undefined> {
    const name = nameOf({ provider });
    const key = await askForKey(`Key for ${name}`, hasKey ? "Empty: the key that is there already" : undefined);
    if (key === undefined) return undefined;
    let model: string | undefined = "";
    if (needsModel) {
      const served = await this.agent.servedModels(provider, key).catch(() => undefined);
      model = await chooseModel(name, served?.models ?? []);
    }
    return model === undefined ? undefined : this.save(provider, key, "", model);
  }

  private async withAddress(): Promise<string | undefined> {
    let address = "";
    for (let why = ""; ; ) {
      const typed = await vscode.window.showInputBox({
        title: "Address of an OpenAI-compatible server",
        prompt: why || "Its base URL, usually with /v1",
        placeHolder: "http://127.0.0.1:8000/v1",
        value: address,
        ignoreFocusOut: true,
      });
      if (typed === undefined) return undefined;
      address = typed;
      const key = await askForKey("Key for this server", "Empty: it needs none");
      if (key === undefined) return undefined;
      try {
        const { baseUrl, models } = await this.agent.servedModels("local", key, address);
        const model = await chooseModel(baseUrl, models);
        return model === undefined ? undefined : await this.save("local", key, baseUrl, model);
      } catch (problem) {
        why = words(problem).slice(0, LONGEST_ERROR);
      }
    }
  }

  private async withEmbedded(model: EmbeddedModel): Promise<string | undefined> {
    const name = model.crystal.slice(model.crystal.indexOf(":") + 1);
    const done = await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: model.here ? "Preparing the model" : `Downloading ${name} (${megabytes(model.bytes)})`, cancellable: true },
      async (progress, token) => pull(await this.program(), name, token, (message) => { progress.report({ message }); }),
    );
    return done ? this.save("embedded", "", "", name) : undefined;
  }

  private async save(provider: string, key: string, baseUrl: string, model: string): Promise<string> {
    const { crystal, overridden } = await this.agent.signIn({ provider, key, baseUrl, model });
    if (overridden.length > 0) {
      void vscode.window.showWarningMessage(
        `Your choice is saved, and ${overridden.join(" and ")} in the environment of the agent come first. Remove them from the setting cantrip.env or from your shell.`,
      );
    }
    return crystal;
  }
}

function askForKey(title: string, ifEmpty: string | undefined): Promise<string | undefined> {
  return Promise.resolve(
    vscode.window.showInputBox({
      title,
      prompt: ifEmpty ?? "It is kept in a file of your configuration folder that only you can read.",
      password: true,
      ignoreFocusOut: true,
      validateInput: (text) => (text.trim() === "" && ifEmpty === undefined ? "Paste the key here." : undefined),
    }),
  ).then((text) => text?.trim());
}

/** Choose one of the models that a server lists, or type its name if it lists none. */
async function chooseModel(server: string, models: readonly { readonly name: string; readonly contextWindow?: number | null }[]): Promise<string | undefined> {
  if (models.length === 0) {
    const typed = await vscode.window.showInputBox({ title: `Model of ${server}`, prompt: "The server lists no models. Type the name of the one to use.", ignoreFocusOut: true });
    return typed?.trim() || undefined;
  }
  const picked = await vscode.window.showQuickPick(
    models.map((model) => ({ label: model.name, description: modelDetail(model) })),
    { title: `Model of ${server}`, placeHolder: "You can change it in the chat", ignoreFocusOut: true },
  );
  return picked?.label;
}

function nameOf({ provider }: Pick<KeyProvider, "provider">): string {
  return PROVIDERS[provider] ?? provider;
}

function megabytes(bytes: number): string {
  return `${Math.round(bytes / 1_000_000)} MB`;
}

const STEPS: Readonly<Record<string, string>> = { engine: "installing llama.cpp", download: "downloading", unpack: "unpacking", check: "checking" };

/** Get the weights of a small model and what runs it. False if the user stopped; rejects with the program's words. */
function pull(program: AgentCommand, name: string, token: vscode.CancellationToken, say: (message: string) => void): Promise<boolean> {
  // The command of the agent, with another subcommand.
  const args = [...program.args.slice(0, program.args.indexOf("acp")), "models", "pull", "--with-engine", "--percent", name];
  return new Promise((resolve, reject) => {
    const child = execFile(program.command, args, { env: { ...process.env, ...program.env }, cwd: program.cwd }, (error, _stdout, stderr) => {
      if (token.isCancellationRequested) resolve(false);
      else if (error === null) resolve(true);
      else reject(new Error(stderr.trim().split("\n").at(-1)?.replace(/^cantrip: /, "") || error.message));
    });
    child.stderr?.on("data", (text: string) => {
      const found = /^(\w+) (\d+)$/m.exec(text.trim().split("\n").at(-1) ?? "");
      const step = STEPS[found?.[1] ?? ""];
      if (step !== undefined) say(found?.[1] === "engine" ? step : `${step}, ${found?.[2]} %`);
    });
    token.onCancellationRequested(() => child.kill());
  });
}
