import type { Item, Op, ToolItem } from '../../src/chat/items'
import { runsOf, runWords } from '../../src/chat/runs'
import { el, icon } from './dom'
import { host } from './host'
import { type ItemView, viewOf } from './items'

const NEAR_END = 24
/** The time in ms after a wheel, touch or key event in which a scroll counts as the user's. */
const OWN_MS = 250
const SCROLL_KEYS = new Set(['ArrowUp', 'PageUp', 'Home', 'ArrowDown', 'PageDown', 'End', ' '])
/** The time in ms for which an expanded item keeps its position, unless something new comes. */
const HOLD_MS = 400
/** The number of items that are fetched at once, and of those that exist as elements. */
const AT_ONCE = 80
const MOST = 240
/** The distance in pixels from the first or the last element at which more are fetched. */
const NEAR = 800
/** The height of an item in pixels before any was measured. */
const GUESS = 60

interface Shown {
  item: Item
  readonly view: ItemView
}

/** The items of a conversation from a place on. */
export interface Part {
  readonly first: number
  readonly items: readonly Item[]
  readonly total: number
}

/**
 * The conversation. Only the items near the visible part exist as elements; the extension host has all of them, and gives
 * others when the user scrolls there. Two empty blocks stand for the rest, so that the scroll bar shows where one is.
 * Elements are changed in place, never created again while they are shown.
 *
 * The view follows the end, or the open question. Only the user's wheel, touch, keys or scroll bar stop that, because
 * layout changes also cause scroll events. When the user is back at the end, it follows again.
 */
export class Log {
  readonly element = el('div', { class: 'log', role: 'region', 'aria-label': 'Conversation', tabindex: 0 })
  /** Whether an answer is being written. */
  running = false
  private readonly list = el('div', { class: 'items', role: 'feed', 'aria-label': 'Messages', hidden: true })
  private readonly above = el('div', { class: 'unseen' })
  private readonly below = el('div', { class: 'unseen' })
  private readonly down: HTMLButtonElement
  private shown: Shown[] = []
  private readonly views = new Map<string, Shown>()
  /** The place of the first shown item in the conversation, and the number of all items. */
  private first = 0
  private total = 0
  private height = GUESS
  private open: ItemView | undefined
  /** The items with an open question, also those that are not shown. */
  private readonly asking = new Set<string>()
  /** The runs that the user has opened, by their first items, and the lines for runs. */
  private readonly opened = new Set<string>()
  private readonly runs = new Map<string, HTMLElement>()
  private following = true
  /** The time until which a scroll counts as the user's. */
  private own = 0
  private hold = 0
  private lastTop = 0
  private dragging = false
  /** The number of the request for items that has no answer yet; 0 if there is none. */
  private waiting = 0
  private asks = 0
  /** What to do when the requested items are there. */
  private then: (() => void) | undefined
  private session = ''
  private saving = 0
  /** The distance from the top at which the message was whose button for another version was pressed. */
  private pressed = 0
  /** The session whose place was restored, or in which the user has moved. */
  private placed = ''
  /** Whether items were added or changed since `arrange`. */
  private changed = false

  constructor(private readonly empty: HTMLElement) {
    this.element.append(this.empty, this.above, this.list, this.below)
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
    scroller.addEventListener('click', (event) => { if (event.target instanceof Element && event.target.closest('summary, .output-fold, .run-head')) this.hold = performance.now() + HOLD_MS })
    scroller.addEventListener('click', (event) => {
      const item = event.target instanceof Element && event.target.closest('.versions button[data-step]')?.closest('.item')
      if (item) this.pressed = item.getBoundingClientRect().top - scroller.getBoundingClientRect().top
    })
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

  private get end(): number {
    return this.first + this.shown.length
  }

  /** Show a conversation. `same`: it is the one that is shown, so the position stays. */
  reset(part: Part, session: string, same = false): void {
    this.waiting = 0
    this.then = undefined
    this.total = part.total
    this.empty.hidden = part.total > 0
    this.list.hidden = part.total === 0
    this.session = session
    this.asking.clear()
    for (const item of part.items) this.ask(item)
    if (same && !this.following && this.first < part.first) {
      // The user reads something earlier: the same again, in its present state.
      this.request(this.first, Math.min(this.end, part.total), true)
      return
    }
    if (!same) this.following = true
    this.draw(part)
    const kept = this.placed === session ? undefined : savedPlace(session)
    if (kept !== undefined && kept.index < part.total) {
      this.placed = session
      this.following = false
      this.request(kept.index - AT_ONCE / 2, kept.index + AT_ONCE / 2, true, () => {
        const element = this.shown[kept.index - this.first]?.view.element
        if (element !== undefined) this.element.scrollTop += element.getBoundingClientRect().top - this.element.getBoundingClientRect().top - kept.offset
      })
    }
    this.keepUp()
    this.showDown()
  }

  /** Items that were asked for. */
  receive(ask: number, part: Part): void {
    if (ask !== this.waiting) return
    this.waiting = 0
    this.total = Math.max(this.total, part.total)
    const end = part.first + part.items.length
    const then = this.then
    this.then = undefined
    if (this.replacing || end < this.first || part.first > this.end) {
      this.keeping(() => { this.draw(part) })
    } else {
      const before = part.items.slice(0, Math.max(0, this.first - part.first))
      const after = part.items.slice(Math.max(0, this.end - part.first))
      this.keeping(() => {
        if (before.length > 0) {
          const made = before.map((item) => this.make(item, false))
          this.list.prepend(...made.map(({ view }) => view.element))
          this.shown.unshift(...made)
          this.first -= made.length
          this.trim('end')
        }
        if (after.length > 0) {
          const made = after.map((item, at) => this.make(item, this.running && this.end + at === this.total - 1))
          this.list.append(...made.map(({ view }) => view.element))
          this.shown.push(...made)
          this.trim('start')
        }
        this.arrange()
      })
    }
    then?.()
    this.keepUp()
    this.showDown()
    this.fill()
  }

  apply(op: Op): void {
    if (op.op === 'add' || op.op === 'set') this.changed = true
    switch (op.op) {
      case 'add': {
        this.finish()
        this.empty.hidden = true
        this.list.hidden = false
        this.ask(op.item)
        const atEnd = this.end === this.total
        this.total += 1
        // What the user does not look at needs no element.
        if (atEnd && (this.following || this.shown.length < MOST)) {
          const made = this.make(op.item, true)
          this.list.append(made.view.element)
          this.shown.push(made)
        }
        if (op.item.type === 'user') this.follow()
        break
      }
      case 'set': {
        this.ask(op.item)
        const shown = this.views.get(op.item.id)
        if (shown === undefined) break
        shown.item = op.item
        shown.view.set(op.item)
        break
      }
      case 'text':
        this.views.get(op.id)?.view.text(op.text)
        break
      case 'output':
        this.views.get(op.id)?.view.output(op.text)
        break
    }
  }

  /** After a batch of ops, follow the end again. */
  afterApply(): void {
    this.hold = 0
    if (!this.changed) {
      // Text alone changes no place.
    } else if (this.following) {
      this.trim('start')
      this.arrange()
    } else {
      this.keeping(() => { this.arrange() })
    }
    this.changed = false
    this.keepUp()
    this.showDown()
  }

  /** Scroll to the open question. True if it was visible already. */
  showQuestion(): boolean {
    const buttons = this.question()?.querySelector('.buttons')
    if (!buttons) {
      if (this.asking.size === 0) return true
      this.follow()
      return false
    }
    const view = this.element.getBoundingClientRect()
    const place = buttons.getBoundingClientRect()
    if (place.top >= view.top && place.bottom <= view.bottom + 1) return true
    this.follow()
    return false
  }

  /** Whether a question is open that is not shown, because the user reads something else. */
  get asksUnseen(): boolean {
    return this.asking.size > 0 && this.question() === null
  }

  /**
   * Show a message where the one was whose button for another version was pressed, and focus its button. `index` is its
   * place in the conversation.
   */
  reveal(item: string, index: number, step: -1 | 1): void {
    const { pressed } = this
    this.following = false
    this.placed = this.session
    const show = (): void => {
      const element = this.views.get(item)?.view.element
      if (element === undefined) return
      this.element.scrollTop += element.getBoundingClientRect().top - this.element.getBoundingClientRect().top - pressed
      const buttons = [...element.querySelectorAll<HTMLButtonElement>('.versions button[data-step]')].filter((each) => !each.disabled)
      const focus = buttons.find((each) => each.dataset['step'] === String(step)) ?? buttons[0] ?? element
      focus.focus({ preventScroll: true })
      this.lastTop = this.element.scrollTop
      this.showDown()
      this.fill()
    }
    if (this.views.has(item)) show()
    else this.request(index - AT_ONCE / 2, index + AT_ONCE / 2, true, show)
  }

  /** The place of the first item in view. */
  get firstVisible(): number {
    const { top } = this.element.getBoundingClientRect()
    const at = this.shown.findIndex(({ view }) => view.element.getBoundingClientRect().bottom > top)
    return at < 0 ? this.end : this.first + at
  }

  /** Show an item by its id and its place in the conversation, and then do something with its element. */
  show(id: string, index: number, then: (element: HTMLElement) => void): void {
    this.following = false
    this.placed = this.session
    const there = (): void => {
      const element = this.views.get(id)?.view.element
      if (element === undefined) return
      const run = this.runAt(index - this.first)
      if (run !== undefined && !this.opened.has(run)) {
        this.opened.add(run)
        this.arrange()
      }
      then(element)
      this.lastTop = this.element.scrollTop
      this.showDown()
      this.fill()
    }
    if (this.views.has(id)) there()
    else this.request(index - AT_ONCE / 2, index + AT_ONCE / 2, true, there)
  }

  /** The run of folded calls that an item is in, by its first item. */
  private runAt(at: number): string | undefined {
    const run = runsOf(this.shown.map(({ item }) => item)).find(({ from, to }) => at >= from && at <= to)
    return run && this.shown[run.from]?.item.id
  }

  /** The last message is complete. */
  finish(): void {
    this.open?.finish()
    this.open = undefined
  }

  // --- elements

  private draw({ first, items }: Part): void {
    this.views.clear()
    this.runs.clear()
    this.open = undefined
    this.first = first
    this.shown = items.map((item, at) => this.make(item, this.running && first + at === this.total - 1))
    this.list.replaceChildren(...this.shown.map(({ view }) => view.element))
    this.arrange()
  }

  private make(item: Item, streaming: boolean): Shown {
    const view = viewOf(item, streaming)
    const shown = { item, view }
    this.views.set(item.id, shown)
    if (streaming) this.open = view
    view.element.tabIndex = -1
    return shown
  }

  private ask(item: Item): void {
    if (item.type !== 'tool' && item.type !== 'form') return
    if (item.question) this.asking.add(item.id)
    else this.asking.delete(item.id)
  }

  /** Remove elements at one end if there are too many. */
  private trim(at: 'start' | 'end'): void {
    const count = this.shown.length - MOST
    if (count <= 0) return
    const gone = at === 'start' ? this.shown.splice(0, count) : this.shown.splice(-count)
    if (at === 'start') this.first += count
    for (const { item, view } of gone) {
      if (view.element.contains(document.activeElement)) this.element.focus({ preventScroll: true })
      view.element.remove()
      this.views.delete(item.id)
      this.runs.get(item.id)?.remove()
      this.runs.delete(item.id)
    }
  }

  /** After a change: fold the runs of calls, number the items, and give the empty blocks their heights. */
  private arrange(): void {
    const folded = new Set<string>()
    const heads = new Set<string>()
    for (const { from, to, calls } of runsOf(this.shown.map(({ item }) => item))) {
      const first = this.shown[from]
      if (first === undefined) continue
      const { id } = first.item
      heads.add(id)
      const open = this.opened.has(id)
      const head = this.runs.get(id) ?? this.head(id)
      this.runs.set(id, head)
      tell(head, calls, open)
      if (head.nextElementSibling !== first.view.element) first.view.element.before(head)
      if (!open) for (const { item } of this.shown.slice(from, to + 1)) folded.add(item.id)
    }
    for (const [id, head] of this.runs) {
      if (heads.has(id)) continue
      head.remove()
      this.runs.delete(id)
    }
    for (const [at, { item, view }] of this.shown.entries()) {
      view.element.classList.toggle('in-run', folded.has(item.id))
      mark(view.element, 'aria-posinset', String(this.first + at + 1))
      mark(view.element, 'aria-setsize', this.running ? '-1' : String(this.total))
    }
    if (this.shown.length > 0 && this.list.offsetHeight > 0) this.height = this.list.offsetHeight / this.shown.length
    this.above.style.height = `${Math.round(this.first * this.height)}px`
    this.below.style.height = `${Math.round(Math.max(0, this.total - this.end) * this.height)}px`
  }

  /** The line that stands for a run. */
  private head(id: string): HTMLElement {
    const button = el('button', {
      class: 'run-head',
      type: 'button',
      onclick: () => {
        if (!this.opened.delete(id)) this.opened.add(id)
        this.keeping(() => { this.arrange() })
      },
    })
    return el('div', { class: 'item run-item', role: 'article', tabindex: -1 }, button)
  }

  /** Do something, and keep the visible part where it is. */
  private keeping(change: () => void): void {
    const top = this.element.getBoundingClientRect().top
    const anchor = this.following ? undefined : [...this.list.children].find((each) => each.getBoundingClientRect().bottom > top)
    const before = anchor?.getBoundingClientRect().top ?? 0
    change()
    if (anchor?.isConnected) this.element.scrollTop += anchor.getBoundingClientRect().top - before
    this.lastTop = this.element.scrollTop
  }

  // --- what is shown

  private replacing = false

  private request(from: number, to: number, replace = false, then?: () => void): void {
    this.asks += 1
    this.waiting = this.asks
    this.replacing = replace
    this.then = then
    host.postMessage({ type: 'items', ask: this.asks, from: Math.max(0, from), to: Math.max(0, Math.min(this.total, to)) })
  }

  /** Fetch what is near the visible part and has no element. */
  private fill(): void {
    if (this.waiting || this.total === this.shown.length) return
    if (this.following) {
      if (this.end < this.total) this.request(this.total - AT_ONCE, this.total)
      return
    }
    const view = this.element.getBoundingClientRect()
    const list = this.list.getBoundingClientRect()
    if (list.top > view.bottom || list.bottom < view.top) {
      // The user dragged the scroll bar far away.
      const place = Math.floor((this.element.scrollTop - this.above.offsetTop) / this.height)
      const index = list.top > view.bottom ? place : this.end + Math.floor((view.top - list.bottom) / this.height)
      this.request(index - AT_ONCE / 2, index + AT_ONCE / 2, true)
    } else if (this.first > 0 && list.top > view.top - NEAR) this.request(this.first - AT_ONCE, this.first)
    else if (this.end < this.total && list.bottom < view.bottom + NEAR) this.request(this.end, this.end + AT_ONCE)
  }

  private scrolled(): void {
    const { scrollTop } = this.element
    if (this.dragging || performance.now() < this.own) {
      // Momentum scrolling continues after the touch.
      if (!this.dragging) this.own = performance.now() + OWN_MS
      if (this.atEnd()) this.following = true
      else if (scrollTop < this.lastTop) this.following = false
      this.placed = this.session
      window.clearTimeout(this.saving)
      this.saving = window.setTimeout(() => { this.save() }, 200)
    }
    this.lastTop = this.element.scrollTop
    this.showDown()
    this.fill()
  }

  /** Keep the place in the conversation for when the page is created again. */
  private save(): void {
    const top = this.element.getBoundingClientRect().top
    const at = this.following ? -1 : this.shown.findIndex(({ view }) => view.element.getBoundingClientRect().bottom > top)
    const element = this.shown[at]?.view.element
    const place = element === undefined ? undefined : { session: this.session, index: this.first + at, offset: element.getBoundingClientRect().top - top }
    host.setState({ ...(host.getState() as object | undefined), place })
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
    return this.end === this.total && this.element.scrollTop >= this.goal() - NEAR_END
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
    this.waiting = 0
    this.fill()
    this.keepUp()
    this.showDown()
  }

  private showDown(): void {
    this.down.hidden = this.following || this.atEnd()
    const asks = this.asking.size > 0
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
    const up = event.key === 'ArrowUp'
    const items = [...this.list.children].filter((each): each is HTMLElement => each instanceof HTMLElement && each.offsetHeight > 0)
    const now = items.findIndex((item) => item.contains(document.activeElement))
    const next = items[now < 0 ? items.length - 1 : now + (up ? -1 : 1)]
    if (next !== undefined) return goTo(next)
    if (up ? this.first === 0 : this.end === this.total) return
    this.following = false
    const from = up ? this.first - AT_ONCE : this.end
    this.request(from, from + AT_ONCE, false, () => {
      const there = [...this.list.children].filter((each): each is HTMLElement => each instanceof HTMLElement && each.offsetHeight > 0)
      const then = there[there.findIndex((item) => item.contains(document.activeElement)) + (up ? -1 : 1)]
      if (then !== undefined) goTo(then)
    })
  }
}

function goTo(item: HTMLElement): void {
  item.focus({ preventScroll: true })
  item.scrollIntoView({ block: 'nearest' })
}

function mark(element: HTMLElement, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value)
}

/** Write what a run did into its line. */
function tell(head: HTMLElement, calls: readonly ToolItem[], open: boolean): void {
  const words = runWords(calls)
  const shown = `${words}\n${open}`
  if (head.dataset['shown'] === shown) return
  head.dataset['shown'] = shown
  head.setAttribute('aria-label', words)
  const button = head.firstElementChild
  button?.setAttribute('aria-expanded', String(open))
  button?.replaceChildren(icon('chevron-right', 'chevron'), icon('checklist', 'kind'), el('span', { class: 'title' }, words))
}

/** Where the user was in a conversation before the page was created again. */
function savedPlace(session: string): { index: number; offset: number } | undefined {
  const { place } = (host.getState() ?? {}) as { place?: { session?: unknown; index?: unknown; offset?: unknown } }
  if (!session || place?.session !== session || typeof place.index !== 'number' || typeof place.offset !== 'number') return undefined
  return { index: place.index, offset: place.offset }
}
