import { createAnsiSequenceParser } from 'ansi-sequence-parser'
/* eslint-disable no-control-regex -- escape codes are control characters */
import { el } from './dom'

const MOST_LINES = 4000
// Escape sequences that are no colours: cursor, titles, character sets.
const OTHERS = /\u001b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[()*+][0-9A-Z]|[=>78MDEHcNO])/g
// The beginning of one at the end of a piece: its rest is still to come.
const UNFINISHED = /\u001b(?:\[[0-?]*[ -/]*|\][^\u0007\u001b]{0,200}|[()*+])?$/

/** What a command prints, in its colours. Lines are added as they come; the oldest of very long outputs go. */
export class TerminalView {
  readonly element = el('pre', { class: 'terminal', tabindex: 0, 'aria-label': 'Output' })
  private readonly parser = createAnsiSequenceParser()
  private line = el('span', { class: 'line' })
  private waiting = ''
  /** A lone carriage return: what comes next stands in this line's place. */
  private returned = false

  constructor(text = '') {
    this.element.append(this.line)
    if (text) this.append(text)
  }

  append(data: string): void {
    const stuck = this.element.scrollTop + this.element.clientHeight >= this.element.scrollHeight - 24
    let text = this.waiting + data
    const cut = UNFINISHED.exec(text)
    this.waiting = cut?.[0] ?? (text.endsWith('\r') ? '\r' : '')
    if (this.waiting) text = text.slice(0, -this.waiting.length)
    for (const piece of text.replace(OTHERS, '').split(/(\r\n|\n|\r)/)) {
      if (piece === '\r\n' || piece === '\n') this.newLine()
      else if (piece === '\r') this.returned = true
      else if (piece) this.write(piece)
    }
    if (stuck) this.element.scrollTop = this.element.scrollHeight
  }

  private newLine(): void {
    this.returned = false
    this.line.append('\n')
    this.line = el('span', { class: 'line' })
    this.element.append(this.line)
    while (this.element.childElementCount > MOST_LINES) this.element.firstElementChild?.remove()
  }

  private write(text: string): void {
    if (this.returned) this.line.replaceChildren()
    this.returned = false
    for (const token of this.parser.parse(text)) {
      const names = [...token.decorations]
      if (!token.foreground && !token.background && names.length === 0) {
        this.line.append(token.value)
        continue
      }
      const span = el('span', { class: names.map((name) => `ansi-${name}`).join(' ') || undefined }, token.value)
      const foreground = colour(token.foreground)
      const background = colour(token.background)
      if (foreground) span.style.color = foreground
      if (background) span.style.backgroundColor = background
      this.line.append(span)
    }
  }
}

type Colour = ReturnType<ReturnType<typeof createAnsiSequenceParser>['parse']>[number]['foreground']

/** The editor's own terminal colours for the named ones. */
function colour(value: Colour): string | undefined {
  if (!value) return undefined
  if (value.type === 'named') return `var(--vscode-terminal-ansi${value.name.charAt(0).toUpperCase()}${value.name.slice(1)})`
  if (value.type === 'rgb') return `rgb(${value.rgb.join(',')})`
  const { index } = value
  if (index >= 232) {
    const grey = 8 + (index - 232) * 10
    return `rgb(${grey},${grey},${grey})`
  }
  const level = (part: number): number => (part === 0 ? 0 : 55 + part * 40)
  const at = index - 16
  return `rgb(${level(Math.floor(at / 36))},${level(Math.floor(at / 6) % 6)},${level(at % 6)})`
}
