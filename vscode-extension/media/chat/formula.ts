import { el } from './dom'
import type * as Katex from './katex'
import { katex } from './load'
import type { Formula } from './math'
import { Cache, keepingPlace, whenSeen } from './seen'

/** Drawing takes longer than in proportion to the length. */
const LONGEST = 3_000
/** Macros of its own: a short text could become one without end. */
const DEFINES = /\\(?:[egx]?def|let|futurelet|(?:re)?newcommand|providecommand)(?![A-Za-z@])/
/** The time in ms that formulas may take at once, before the page has been shown. */
const BUDGET_MS = 8

const drawn = new Cache<HTMLElement | string>(500)
let library: typeof Katex | undefined
let spent = 0

/** A formula. Its text is shown until it is drawn, and if it cannot be. */
export function formula({ raw, text, display }: Formula): HTMLElement {
  const element = el('span', { class: display ? 'formula display' : 'formula', ...(display ? { tabindex: 0, role: 'group', 'aria-label': 'Formula' } : {}) }, raw.trim())
  if (text.length > LONGEST || DEFINES.test(text)) {
    fail(element, text.length > LONGEST ? 'This formula is too long to be drawn.' : 'A formula that defines macros is not drawn.')
    return element
  }
  if (library !== undefined && spent < BUDGET_MS) put(element, library, text, display)
  else {
    whenSeen(element, async () => {
      try {
        library ??= await katex()
      } catch {
        fail(element, 'Formulas cannot be drawn, because a part of the extension could not be loaded.')
        return
      }
      const { draw } = library
      keepingPlace(element, () => { put(element, { draw }, text, display) })
    })
  }
  return element
}

function put(element: HTMLElement, { draw }: typeof Katex, text: string, display: boolean): void {
  if (spent === 0) setTimeout(() => { spent = 0 })
  const begun = performance.now()
  const name = `${display ? 'display' : 'line'} ${text}`
  let made = drawn.get(name)
  if (made === undefined) {
    try {
      made = draw(text, display)
    } catch (problem) {
      made = `This formula cannot be drawn: ${problem instanceof Error ? problem.message.split('\n')[0] ?? '' : String(problem)}`
    }
    drawn.set(name, made)
  }
  if (typeof made === 'string') fail(element, made)
  else element.replaceChildren(made.cloneNode(true))
  // A clock that is coarse says 0 for each of very many.
  spent += Math.max(0.02, performance.now() - begun)
}

function fail(element: HTMLElement, why: string): void {
  element.classList.add('undrawn')
  element.title = why
}
