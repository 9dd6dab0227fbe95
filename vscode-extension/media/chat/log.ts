import type { Item, Op } from '../../src/chat/items'
import { el, icon, iconButton } from './dom'
import { host } from './host'
import { type ItemView, viewOf } from './items'

const NEAR_END = 60

/**
 * The conversation. Items are added at the end and changed in place, never made anew; those far from what is seen cost no layout
 * (`content-visibility`), and the past beyond the last of them is fetched as one scrolls up.
 */
export class Log {
  readonly element = el('div', { class: 'log', role: 'log', 'aria-live': 'off', 'aria-label': 'Conversation', tabindex: 0 })
  private readonly list = el('div', { class: 'items' })
  private readonly earlier = el('div', { class: 'earlier', hidden: true }, icon('loading', 'codicon-modifier-spin'), ' Earlier messages')
  private readonly down: HTMLButtonElement
  private readonly views = new Map<string, ItemView>()
  private open: { id: string; view: ItemView } | undefined
  private stuck = true
  private more = false
  private fetching = false

  constructor(private readonly empty: HTMLElement) {
    this.element.append(this.earlier, this.empty, this.list)
    this.down = iconButton('arrow-down', 'Go to the end', () => { this.toEnd(true) }, 'to-end')
    this.down.hidden = true
    this.element.addEventListener('scroll', () => { this.scrolled() }, { passive: true })
    this.element.addEventListener('keydown', (event) => { this.key(event) })
    new ResizeObserver(() => { if (this.stuck) this.toEnd() }).observe(this.list)
    new ResizeObserver(() => { if (this.stuck) this.toEnd() }).observe(this.element)
  }

  /** The button that leads to the end; it stands over the log. */
  get toEndButton(): HTMLElement {
    return this.down
  }

  reset(items: readonly Item[], more: boolean, running: boolean): void {
    this.views.clear()
    this.open = undefined
    this.list.replaceChildren(...items.map((item, at) => this.make(item, running && at === items.length - 1)))
    this.setMore(more)
    this.empty.hidden = items.length > 0
    this.stuck = true
    this.toEnd()
  }

  prepend(items: readonly Item[], more: boolean): void {
    const before = this.element.scrollHeight
    this.list.prepend(...items.map((item) => this.make(item, false)))
    // What is looked at stays where it is.
    this.element.scrollTop += this.element.scrollHeight - before
    this.setMore(more)
    this.fetching = false
  }

  apply(op: Op): void {
    switch (op.op) {
      case 'add':
        this.finish()
        this.empty.hidden = true
        this.list.append(this.make(op.item, true))
        if (op.item.type === 'user') this.toEnd(true)
        return
      case 'set':
        this.views.get(op.item.id)?.set(op.item)
        return
      case 'text':
        this.views.get(op.id)?.text(op.text)
        return
      case 'output':
        this.views.get(op.id)?.output(op.text)
        return
    }
  }

  /** No more text comes for what was said last. */
  finish(): void {
    this.open?.view.finish()
    this.open = undefined
  }

  private make(item: Item, streaming: boolean): HTMLElement {
    const view = viewOf(item, streaming)
    this.views.set(item.id, view)
    if (streaming) this.open = { id: item.id, view }
    view.element.tabIndex = -1
    return view.element
  }

  private setMore(more: boolean): void {
    this.more = more
    this.earlier.hidden = !more
  }

  private scrolled(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.element
    this.stuck = scrollTop + clientHeight >= scrollHeight - NEAR_END
    this.down.hidden = this.stuck
    const first = this.list.firstElementChild
    if (this.more && !this.fetching && scrollTop < 400 && first instanceof HTMLElement && first.dataset.id) {
      this.fetching = true
      host.postMessage({ type: 'earlier', before: first.dataset.id })
    }
  }

  private toEnd(force = false): void {
    if (force) this.stuck = true
    this.element.scrollTop = this.element.scrollHeight
  }

  /** Alt with the arrows goes from message to message. */
  private key(event: KeyboardEvent): void {
    if (!event.altKey || (event.key !== 'ArrowUp' && event.key !== 'ArrowDown')) return
    event.preventDefault()
    const items = [...this.list.children]
    const now = items.findIndex((item) => item.contains(document.activeElement))
    const at = now < 0 ? items.length - 1 : now + (event.key === 'ArrowUp' ? -1 : 1)
    const next = items[Math.max(0, Math.min(items.length - 1, at))]
    if (next instanceof HTMLElement) {
      next.focus()
      next.scrollIntoView({ block: 'nearest' })
    }
  }
}
