import type { Child } from '../../src/chat/items'
import { timeOf } from '../../src/chat/runs'
import { el, icon } from './dom'

const STATES: Readonly<Record<Child['state'] | 'failed', readonly [string, string]>> = {
  running: ['loading codicon-modifier-spin', 'running'],
  done: ['check', 'done'],
  stopped: ['circle-slash', 'stopped'],
  failed: ['error', 'failed'],
}
const SIGNS: Readonly<Record<string, string>> = { action: 'chevron-right', failure: 'error', retry: 'history', text: 'comment', intent: 'arrow-right' }

/** The children of a call: a line for each with its task, what it does now and its time. An open line shows its steps. */
export class ChildrenView {
  readonly element = el('div', { class: 'children', role: 'list', 'aria-label': 'Children' })
  private readonly lines = new Map<string, ChildLine>()

  /** `failed`: the call that started the only child has failed. `more` is shown below the steps of the only child. */
  set(children: readonly Child[], failed = false, more?: HTMLElement): void {
    const kept = new Set(children.map((child) => child.id))
    for (const [id, line] of this.lines) {
      if (kept.has(id)) continue
      line.element.remove()
      this.lines.delete(id)
    }
    for (const [at, child] of children.entries()) {
      let line = this.lines.get(child.id)
      if (!line) this.lines.set(child.id, line = new ChildLine())
      // A line that moves would lose the focus.
      if (this.element.children[at] !== line.element) this.element.insertBefore(line.element, this.element.children[at] ?? null)
      line.set(child, failed, more)
    }
  }
}

class ChildLine {
  private readonly task = el('span', { class: 'task', dir: 'auto' })
  private readonly number = el('span', { class: 'number' })
  private readonly seconds = el('span', { class: 'seconds' })
  private readonly sign = el('span', { class: 'status' })
  private readonly now = el('span', { class: 'now', dir: 'auto' })
  private readonly earlier = el('li', { class: 'earlier' })
  private readonly steps = el('ol', { class: 'steps' }, this.earlier)
  private readonly summary = el('summary', {}, icon('chevron-right', 'chevron'), this.number, this.task, this.seconds, this.sign, this.now)
  readonly element = el('details', { class: 'child', role: 'listitem' }, this.summary, this.steps)
  private shown = 0

  set(child: Child, failed: boolean, more?: HTMLElement): void {
    const state = failed && child.state !== 'running' ? 'failed' : child.state
    const [sign, words] = STATES[state]
    write(this.number, child.number)
    write(this.task, child.task || 'A task')
    // While it runs, what it does; afterwards why it was stopped.
    const now = child.state === 'done' ? '' : child.now
    write(this.now, now)
    this.now.title = now
    this.sign.className = `status ${state}`
    this.sign.title = words
    this.sign.replaceChildren(icon(sign), el('span', { class: 'hidden-words' }, words))
    if (child.state === 'running' && child.started !== undefined) {
      this.seconds.dataset.since = String(child.started)
      write(this.seconds, timeOf(child.started, Date.now()))
    } else {
      delete this.seconds.dataset.since
      write(this.seconds, timeOf(child.started, child.ended))
    }
    this.summary.setAttribute('aria-label', [child.number, child.task, words, now].filter(Boolean).join(', '))
    // Only what is new is added, so that a selection and the place of scrolling stay.
    const all = child.earlier + child.steps.length
    for (const { kind, text } of child.steps.slice(Math.max(child.steps.length - (all - this.shown), 0))) {
      this.steps.append(el('li', { class: `step ${kind}` }, icon(SIGNS[kind] ?? 'circle-small'), el('span', { dir: 'auto' }, text)))
    }
    this.shown = all
    while (this.steps.childElementCount - 1 > child.steps.length) this.earlier.nextElementSibling?.remove()
    this.earlier.hidden = child.earlier === 0
    write(this.earlier, `${child.earlier.toLocaleString('en')} earlier steps`)
    if (more && more.parentElement !== this.element) this.element.append(more)
  }
}

function write(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text
}

setInterval(() => {
  for (const each of document.querySelectorAll<HTMLElement>('.child .seconds[data-since]')) write(each, timeOf(Number(each.dataset.since), Date.now()))
}, 1000)
