import type { McpStatus } from '../../src/acp/mcp'
import { el, icon, iconButton } from './dom'
import { host } from './host'

const STATES: Readonly<Record<McpStatus['state'], readonly [icon: string, words: string]>> = {
  running: ['pass-filled', 'running'],
  failed: ['error', 'failed'],
  stopped: ['circle-slash', 'stopped'],
  not_started: ['circle-large', 'not started yet'],
}

const STARTING_MS = 1000

/** The MCP servers of the session: their state, tools and last error, above the conversation. */
export class Servers {
  readonly element: HTMLElement
  private readonly list = el('div', { class: 'server-list', role: 'list', tabindex: -1 })
  private servers: readonly McpStatus[] = []
  private problem = ''
  private loading = true
  /** The place of the server that is being restarted. */
  private restarting: number | undefined
  private readonly unfolded = new Set<string>()

  constructor(
    private readonly closed: () => void,
    private readonly say: (words: string) => void,
  ) {
    this.element = el(
      'section',
      { class: 'sessions', role: 'dialog', 'aria-label': 'MCP servers', hidden: true },
      el(
        'header',
        {},
        el('h2', {}, 'MCP servers'),
        iconButton('settings-gear', 'Servers of the settings', () => { host.postMessage({ type: 'openServerSettings' }) }),
        iconButton('refresh', 'Read again', () => { this.show() }),
        iconButton('close', 'Close (Escape)', () => { this.hide() }),
      ),
      this.list,
    )
    this.element.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape') return
      event.preventDefault()
      this.hide()
    })
  }

  show(): void {
    this.loading = true
    this.element.hidden = false
    this.draw()
    this.list.focus()
    host.postMessage({ type: 'servers' })
  }

  set(servers: readonly McpStatus[], problem: string): void {
    const restarted = this.restarting === undefined ? undefined : servers[this.restarting]
    if (restarted) this.say(`${restarted.name} is ${STATES[restarted.state][1]}`)
    this.restarting = undefined
    this.loading = false
    this.servers = servers
    this.problem = problem
    this.draw()
    // They start after the session was opened.
    if (servers.some((server) => server.state === 'not_started')) setTimeout(() => { if (!this.element.hidden) host.postMessage({ type: 'servers' }) }, STARTING_MS)
  }

  hide(): void {
    if (this.element.hidden) return
    this.element.hidden = true
    this.closed()
  }

  private draw(): void {
    const words = this.problem || (this.loading ? 'Loading…' : 'This session has no MCP servers. A recipe names them with mcp_servers, and the settings with cantrip.chat.mcpServers.')
    const focused = this.list.contains(document.activeElement) ? document.activeElement?.getAttribute('data-key') : null
    this.list.replaceChildren(...(this.servers.length > 0 && this.problem === '' ? this.servers.map((server, at) => this.server(server, at)) : [el('p', { class: 'none' }, words)]))
    // The focus stays where it was.
    for (const each of this.list.querySelectorAll<HTMLElement>('[data-key]')) if (each.dataset.key === focused) each.focus()
  }

  private server(server: McpStatus, at: number): HTMLElement {
    const busy = this.restarting === at
    const [sign, words] = STATES[server.state]
    const count = `${server.tools.length} tool${server.tools.length === 1 ? '' : 's'}`
    const where = [server.origin === 'recipe' ? 'from the recipe' : 'from your settings', ...(server.sandboxed ? ['in the sandbox'] : [])].join(', ')
    return el(
      'div',
      { class: `server ${server.state}`, role: 'listitem' },
      el(
        'div',
        { class: 'server-bar' },
        icon(busy ? 'loading codicon-modifier-spin' : sign, 'state'),
        el('strong', { class: 'name' }, server.name),
        el('span', { class: 'words' }, busy ? 'starting…' : words),
        el('button', { class: 'icon-button restart', type: 'button', title: `Restart ${server.name}`, 'aria-label': `Restart ${server.name}`, 'aria-disabled': this.restarting === undefined ? undefined : 'true', 'data-key': `${at} restart`, onclick: () => { this.restart(at) } }, icon('debug-restart')),
      ),
      el('div', { class: 'about' }, where),
      el('code', { class: 'what' }, server.what),
      server.error !== '' && el('div', { class: 'problem' }, server.error),
      server.tools.length > 0 && this.fold(`${at} tools`, count, el('ul', { class: 'tools' }, ...server.tools.map((tool) => el('li', {}, el('code', {}, tool.gate), !tool.usable && el('span', { class: 'words' }, ' (in the next session)'), tool.description !== '' && el('div', { class: 'about' }, tool.description))))),
      server.output !== '' && this.fold(`${at} output`, 'Last output', el('pre', { class: 'terminal', tabindex: 0, 'aria-label': `Last output of ${server.name}` }, server.output)),
    )
  }

  /** Details that stay open when the list is drawn again. */
  private fold(key: string, title: string, content: HTMLElement): HTMLElement {
    const made = el('details', { open: this.unfolded.has(key) }, el('summary', { 'data-key': key }, icon('chevron-right', 'chevron'), title), content)
    made.addEventListener('toggle', () => {
      if (made.open) this.unfolded.add(key)
      else this.unfolded.delete(key)
    })
    return made
  }

  private restart(at: number): void {
    if (this.restarting !== undefined) return
    this.restarting = at
    this.draw()
    host.postMessage({ type: 'restartServer', server: at })
  }
}
