/** How the agent is started: what an environment found, or what a setting says. */
export interface AgentCommand {
  readonly command: string;
  readonly args: readonly string[];
  /** Added to the environment of the extension host. */
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
}

/** The command as a person would type it, for messages. */
export function quotedCommand(command: AgentCommand): string {
  return [command.command, ...command.args].map((word) => (/[\s"'$]/.test(word) ? JSON.stringify(word) : word)).join(" ");
}

/** There is no program to start: its user has to set it up. */
export class NoProgram extends Error {
  override readonly name = "NoProgram";
}
