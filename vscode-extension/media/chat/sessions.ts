import type { SessionRow } from '../../src/chat/messages'
import { el, icon, iconButton } from './dom'
import { host } from './host'

/** The list of earlier sessions, above the conversation. */
export class Sessions {
  readonly element: HTMLElement
  private readonly list = el('div', { class: 'session-list', role: 'list' })
  private readonly filter = el('input', { type: 'text', placeholder: 'Filter sessions', 'aria-label': 'Filter sessions' })
  private sessions: readonly SessionRow[] = []
  private problem = ''
  private loading = true

  constructor(private readonly closed: () => void) {
    this.element = el(
      'section',
      { class: 'sessions', role: 'dialog', 'aria-label': 'Sessions', hidden: true },
      el('header', {}, el('h2', {}, 'Sessions'), iconButton('add', 'New session', () => { this.pick({ type: 'new' }) }), iconButton('close', 'Close (Escape)', () => { this.hide() })),
      this.filter,
      this.list,
    )
    this.filter.addEventListener('input', () => { this.draw() })
    this.element.addEventListener('keydown', (event) => { this.key(event) })
  }

  show(): void {
    this.loading = true
    this.filter.value = ''
    this.element.hidden = false
    this.draw()
    this.filter.focus()
    host.postMessage({ type: 'sessions' })
  }

  set(sessions: readonly SessionRow[], problem: string): void {
    this.loading = false
    this.sessions = [...sessions].sort((a, b) => b.when.localeCompare(a.when))
    this.problem = problem
    this.draw()
  }

  hide(): void {
    this.element.hidden = true
    this.closed()
  }

  private pick(message: Parameters<typeof host.postMessage>[0]): void {
    this.hide()
    host.postMessage(message)
  }

  private draw(): void {
    const wanted = this.filter.value.toLowerCase()
    const fitting = this.sessions.filter((each) => each.title.toLowerCase().includes(wanted))
    const words = this.problem || (this.loading ? 'Loading…' : 'No sessions here yet.')
    this.list.replaceChildren(...(fitting.length > 0 ? fitting.map((each) => this.line(each)) : [el('p', { class: 'none' }, words)]))
  }

  private line(session: SessionRow): HTMLElement {
    return el(
      'div',
      { class: `session${session.current ? ' current' : ''}`, role: 'listitem' },
      el(
        'button',
        { class: 'open', type: 'button', title: session.title, 'aria-current': session.current ? 'true' : undefined, onclick: () => { this.pick({ type: 'open', id: session.id }) } },
        icon(session.waiting ? 'bell-dot waiting' : session.busy ? 'loading codicon-modifier-spin' : session.current ? 'circle-filled' : 'comment-discussion'),
        el('span', { class: 'title' }, session.title),
        session.busy && el('span', { class: session.waiting ? 'asks-you' : 'hidden-words' }, session.waiting ? 'asks you' : 'is working'),
        el('span', { class: 'when', title: session.when ? new Date(session.when).toLocaleString() : '' }, ago(session.when)),
      ),
      iconButton('trash', `Delete ${session.title}`, () => { host.postMessage({ type: 'delete', id: session.id }) }),
    )
  }

  private key(event: KeyboardEvent): void {
    if (event.key === 'Escape') {
      event.preventDefault()
      this.hide()
      return
    }
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return
    event.preventDefault()
    const buttons = [...this.list.querySelectorAll<HTMLElement>('button.open')]
    const now = buttons.findIndex((button) => button === document.activeElement)
    const at = now + (event.key === 'ArrowDown' ? 1 : -1)
    if (at < 0) this.filter.focus()
    else buttons[Math.min(at, buttons.length - 1)]?.focus()
  }
}

const STEPS: readonly (readonly [number, Intl.RelativeTimeFormatUnit])[] = [
  [60, 'second'],
  [3600, 'minute'],
  [86_400, 'hour'],
  [604_800, 'day'],
  [2_629_800, 'week'],
  [31_557_600, 'month'],
  [Infinity, 'year'],
]

/** The time since then in words: `3 hours ago`. */
export function ago(when: string, now = Date.now()): string {
  const time = Date.parse(when)
  if (Number.isNaN(time)) return ''
  const seconds = Math.max(0, (now - time) / 1000)
  if (seconds < 45) return 'now'
  let unit = 1
  for (const [limit, name] of STEPS) {
    if (seconds < limit) return new Intl.RelativeTimeFormat('en', { numeric: 'auto', style: 'short' }).format(-Math.max(1, Math.floor(seconds / unit)), name)
    unit = limit
  }
  return ''
}
