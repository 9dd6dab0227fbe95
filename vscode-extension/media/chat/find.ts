import type { Found } from '../../src/chat/find'
import { el, iconButton } from './dom'
import { host } from './host'
import type { Log } from './log'

const PAUSE_MS = 120
/** The names of the styles for all hits in an item, and for the one that is shown. */
const [ALL, ONE] = ['found', 'found-now'] as const

/**
 * The bar to find words in the whole conversation (Ctrl+F). The extension host finds the items, because only those near
 * the visible part have elements; the page marks the words in an item when it is shown.
 */
export class FindBar {
  readonly element = el('div', { class: 'find', role: 'search', 'aria-label': 'Find in the conversation', hidden: true })
  private readonly input = el('input', { type: 'text', placeholder: 'Find', 'aria-label': 'Find in the conversation', spellcheck: 'false' })
  private readonly count = el('span', { class: 'count', role: 'status' })
  private items: readonly Found[] = []
  private total = 0
  /** The number of the hit that is shown, from 0. */
  private at = 0
  private asks = 0
  private timer = 0
  /** What had the focus before. */
  private before: Element | null = null

  constructor(private readonly log: Log, private readonly focus: () => void) {
    this.element.append(
      this.input,
      this.count,
      iconButton('arrow-up', 'Previous match (Shift+Enter)', () => { this.go(-1) }),
      iconButton('arrow-down', 'Next match (Enter)', () => { this.go(1) }),
      iconButton('close', 'Close (Escape)', () => { this.close() }),
    )
    this.input.addEventListener('input', () => {
      window.clearTimeout(this.timer)
      this.timer = window.setTimeout(() => { this.ask() }, PAUSE_MS)
    })
    this.element.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.close()
      else if (event.key === 'Enter' && event.target === this.input) this.go(event.shiftKey ? -1 : 1)
      else return
      event.preventDefault()
      event.stopPropagation()
    })
  }

  open(): void {
    if (this.element.hidden) this.before = document.activeElement
    this.element.hidden = false
    const chosen = document.getSelection()?.toString().trim() ?? ''
    if (chosen !== '' && !chosen.includes('\n')) this.input.value = chosen
    this.input.focus()
    this.input.select()
    if (this.input.value !== '') this.ask()
  }

  close(): void {
    this.element.hidden = true
    this.clear()
    const { before } = this
    if (before instanceof HTMLElement && before.isConnected && before !== document.body) before.focus({ preventScroll: true })
    else this.focus()
  }

  /** The items with the words that were asked for. */
  found(ask: number, items: readonly Found[]): void {
    if (ask !== this.asks || this.element.hidden) return
    this.items = items
    this.total = items.reduce((sum, each) => sum + each.count, 0)
    // The first hit from the visible part on, so that the view moves little.
    let before = 0
    for (const each of items) {
      if (each.index >= this.log.firstVisible) break
      before += each.count
    }
    this.at = before < this.total ? before : 0
    this.show()
  }

  private ask(): void {
    this.asks += 1
    host.postMessage({ type: 'find', ask: this.asks, words: this.input.value })
  }

  private go(step: -1 | 1): void {
    if (this.total === 0) return
    this.at = (this.at + step + this.total) % this.total
    this.show()
  }

  private tell(): void {
    this.count.textContent = this.input.value === '' ? '' : this.total === 0 ? 'No results' : `${this.at + 1} of ${this.total}`
    this.element.classList.toggle('none', this.input.value !== '' && this.total === 0)
  }

  private show(): void {
    this.tell()
    this.clear()
    let number = this.at
    for (const { id, index, count } of this.items) {
      if (number >= count) {
        number -= count
        continue
      }
      const nth = number
      this.log.show(id, index, (element) => { this.mark(id, count, element, nth) })
      return
    }
  }

  /** Mark the words in an item, and bring one of them into view. */
  private mark(id: string, count: number, element: HTMLElement, nth: number): void {
    const ranges = rangesOf(element, this.input.value)
    if (ranges.length !== count) {
      // An item may show other words than its text has: signs of Markdown, or a call that is shown by its title alone.
      this.items = this.items.flatMap((each) => (each.id !== id ? each : ranges.length === 0 ? [] : { ...each, count: ranges.length }))
      this.total += ranges.length - count
      this.at = this.total === 0 ? 0 : (this.at - Math.max(0, nth - Math.max(0, ranges.length - 1))) % this.total
      if (ranges.length === 0) {
        this.show()
        return
      }
      this.tell()
    }
    const one = ranges[Math.min(nth, ranges.length - 1)]
    const parent = one?.startContainer.parentElement
    for (let above = parent?.closest('details:not([open])'); above; above = above.parentElement?.closest('details:not([open])')) {
      // Words of its title can be seen as it is.
      if (above.querySelector(':scope > summary')?.contains(parent ?? null) !== true) above.setAttribute('open', '')
    }
    CSS.highlights.set(ALL, new Highlight(...ranges))
    if (one === undefined) {
      element.scrollIntoView({ block: 'nearest' })
      return
    }
    CSS.highlights.set(ONE, new Highlight(one))
    parent?.scrollIntoView({ block: 'nearest' })
    const [view, place] = [this.log.element.getBoundingClientRect(), one.getBoundingClientRect()]
    if (place.height > 0 && (place.top < view.top + this.element.offsetHeight || place.bottom > view.bottom)) this.log.element.scrollTop += place.top - view.top - view.height / 3
  }

  private clear(): void {
    CSS.highlights.delete(ALL)
    CSS.highlights.delete(ONE)
  }
}

/** Where words are in the text of an element, whatever their case. */
function rangesOf(element: HTMLElement, words: string): Range[] {
  const wanted = words.toLowerCase()
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
  const nodes: { readonly node: Node; readonly from: number }[] = []
  let text = ''
  while (wanted !== '' && walker.nextNode()) {
    nodes.push({ node: walker.currentNode, from: text.length })
    text += walker.currentNode.nodeValue?.toLowerCase() ?? ''
  }
  const found: Range[] = []
  const place = (at: number): readonly [Node, number] | undefined => {
    const holder = nodes.findLast(({ from }) => from <= at)
    return holder && [holder.node, Math.min(at - holder.from, holder.node.nodeValue?.length ?? 0)]
  }
  for (let at = wanted === '' ? -1 : text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
    const [start, end] = [place(at), place(at + wanted.length - 1)]
    if (start === undefined || end === undefined) continue
    const range = document.createRange()
    range.setStart(...start)
    range.setEnd(end[0], Math.min(end[1] + 1, end[0].nodeValue?.length ?? 0))
    found.push(range)
  }
  return found
}
