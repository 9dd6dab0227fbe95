import type { Item, Op } from '../../src/chat/items'
import { el, icon } from './dom'
import { host } from './host'
import { type ItemView, viewOf } from './items'

const NEAR_END = 24
/** The time in ms after a wheel, touch or key event in which a scroll counts as the user's. */
const OWN_MS = 250
const SCROLL_KEYS = new Set(['ArrowUp', 'PageUp', 'Home', 'ArrowDown', 'PageDown', 'End', ' '])
/** The time in ms for which an expanded item keeps its position, unless something new comes. */
const HOLD_MS = 400

/**
 * The conversation. Items are added at the end or changed in place, never created again. Items far from the visible part cost no layout
 * (`content-visibility`), and older items are fetched when the user scrolls up.
 *
 * The view follows the end, or the open question. Only the user's wheel, touch, keys or scroll bar stop that, because
 * layout changes also cause scroll events. When the user is back at the end, it follows again.
 */
export class Log {
  readonly element = el('div', { class: 'log', role: 'log', 'aria-live': 'off', 'aria-label': 'Conversation', tabindex: 0 })
  private readonly list = el('div', { class: 'items' })
  private readonly earlier = el('div', { class: 'earlier', hidden: true }, icon('loading', 'codicon-modifier-spin'), ' Earlier messages')
  private readonly down: HTMLButtonElement
  private readonly views = new Map<string, ItemView>()
  private open: { id: string; view: ItemView } | undefined
  private following = true
  /** The time until which a scroll counts as the user's. */
  private own = 0
  private hold = 0
  private lastTop = 0
  private dragging = false
  private more = false
  private fetching = false

  constructor(private readonly empty: HTMLElement) {
    this.element.append(this.earlier, this.empty, this.list)
    this.down = el('button', { class: 'to-end', type: 'button', hidden: true, onclick: () => { this.follow() } })
    const scroller = this.element
    const own = (): void => { this.own = performance.now() + OWN_MS }
    scroller.addEventListener('wheel', own, { passive: true })
    scroller.addEventListener('touchmove', own, { passive: true })
    scroller.addEventListener('keydown', (event) => {
      if (SCROLL_KEYS.has(event.key)) own()
      this.key(event)
    })
    // A press beside the content is a press on the scroll bar.
    scroller.addEventListener('pointerdown', (event) => { this.dragging = event.target === scroller && event.offsetX >= scroller.clientWidth })
    window.addEventListener('pointerup', () => { this.dragging = false })
    scroller.addEventListener('click', (event) => { if (event.target instanceof Element && event.target.closest('summary, .output-fold')) this.hold = performance.now() + HOLD_MS })
    // If the focus moves through the conversation, the view follows it.
    window.addEventListener('keydown', (event) => { if (event.key === 'Tab') own() })
    scroller.addEventListener('scroll', () => { this.scrolled() }, { passive: true })
    const settled = (): void => {
      this.keepUp()
      this.showDown()
    }
    new ResizeObserver(settled).observe(this.list)
    new ResizeObserver(settled).observe(this.element)
  }

  /** The button that scrolls to the end, above the log. */
  get toEndButton(): HTMLElement {
    return this.down
  }

  /** Show a conversation. `same`: it is the one that is shown, so the position stays. */
  reset(items: readonly Item[], more: boolean, running: boolean, same = false): void {
    this.views.clear()
    this.open = undefined
    this.list.replaceChildren(...items.map((item, at) => this.make(item, running && at === items.length - 1)))
    this.setMore(more)
    this.empty.hidden = items.length > 0
    if (!same) this.following = true
    this.keepUp()
  }

  prepend(items: readonly Item[], more: boolean): void {
    const before = this.element.scrollHeight
    this.list.prepend(...items.map((item) => this.make(item, false)))
    // The visible part does not move.
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
        if (op.item.type === 'user') this.follow()
        break
      case 'set':
        this.views.get(op.item.id)?.set(op.item)
        break
      case 'text':
        this.views.get(op.id)?.text(op.text)
        break
      case 'output':
        this.views.get(op.id)?.output(op.text)
        break
    }
  }

  /** After a batch of ops, follow the end again. */
  afterApply(): void {
    this.hold = 0
    this.keepUp()
    this.showDown()
  }

  /** Scroll to the open question. True if it was visible already. */
  showQuestion(): boolean {
    const buttons = this.question()?.querySelector('.buttons')
    if (!buttons) return true
    const view = this.element.getBoundingClientRect()
    const place = buttons.getBoundingClientRect()
    if (place.top >= view.top && place.bottom <= view.bottom + 1) return true
    this.follow()
    return false
  }

  /** The last message is complete. */
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
    const { scrollTop } = this.element
    if (this.dragging || performance.now() < this.own) {
      // Momentum scrolling continues after the touch.
      if (!this.dragging) this.own = performance.now() + OWN_MS
      if (this.atEnd()) this.following = true
      else if (scrollTop < this.lastTop) this.following = false
    }
    this.lastTop = this.element.scrollTop
    this.showDown()
    const first = this.list.firstElementChild
    if (this.more && !this.fetching && scrollTop < 400 && first instanceof HTMLElement && first.dataset.id) {
      this.fetching = true
      host.postMessage({ type: 'earlier', before: first.dataset.id })
    }
  }

  /** The first open question. */
  private question(): HTMLElement | null {
    return this.list.querySelector<HTMLElement>('.question')
  }

  /** The scroll target: the end, or a position that shows as much of the open question as possible. */
  private goal(): number {
    const { scrollHeight, clientHeight, scrollTop } = this.element
    const end = Math.max(0, scrollHeight - clientHeight)
    const question = this.question()
    if (!question) return end
    const bottom = question.getBoundingClientRect().bottom - this.element.getBoundingClientRect().top + scrollTop
    return Math.min(end, Math.max(0, bottom + 16 - clientHeight))
  }

  private atEnd(): boolean {
    return this.element.scrollTop >= this.goal() - NEAR_END
  }

  private keepUp(): void {
    if (!this.following || (performance.now() < this.hold && !this.question())) return
    const goal = this.goal()
    if (Math.abs(this.element.scrollTop - goal) > 1) this.element.scrollTop = goal
    this.lastTop = this.element.scrollTop
  }

  private follow(): void {
    this.following = true
    this.hold = 0
    this.keepUp()
    this.showDown()
  }

  private showDown(): void {
    this.down.hidden = this.following || this.atEnd()
    const asks = this.question() !== null
    const label = asks ? 'Cantrip asks: show the question' : 'Go to the end'
    if (this.down.getAttribute('aria-label') === label) return
    this.down.setAttribute('aria-label', label)
    this.down.title = label
    this.down.classList.toggle('asking-below', asks)
    this.down.replaceChildren(icon(asks ? 'shield' : 'arrow-down'), ...(asks ? [el('span', {}, 'Cantrip asks')] : []))
  }

  /** Alt with the arrow keys moves from message to message. */
  private key(event: KeyboardEvent): void {
    if (!event.altKey || (event.key !== 'ArrowUp' && event.key !== 'ArrowDown')) return
    event.preventDefault()
    const items = [...this.list.children]
    const now = items.findIndex((item) => item.contains(document.activeElement))
    const at = now < 0 ? items.length - 1 : now + (event.key === 'ArrowUp' ? -1 : 1)
    const next = items[Math.max(0, Math.min(items.length - 1, at))]
    if (next instanceof HTMLElement) {
      next.focus({ preventScroll: true })
      next.scrollIntoView({ block: 'nearest' })
    }
  }
}
