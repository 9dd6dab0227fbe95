import { createAnsiSequenceParser } from 'ansi-sequence-parser'
/* eslint-disable no-control-regex -- escape codes are control characters */
import { el } from './dom'

const MOST_LINES = 4000
/** The number of last lines of a long output that are shown at first. The style sheet has the same number. */
const SHOWN_LINES = 16
// Escape sequences other than colours: cursor, titles, character sets.
const OTHERS = /\u001b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[()*+][0-9A-Z]|[=>78MDEHcNO])/g
// An incomplete escape sequence at the end of a piece.
const UNFINISHED = /\u001b(?:\[[0-?]*[ -/]*|\][^\u0007\u001b]{0,200}|[()*+])?$/

// The line with which the agent says how much of an output it has not kept.
const GAP = /^\[… (?:([\d,]+) lines \([\d,]+ bytes\)|[\d,]+ bytes) not shown …\]$/

/**
 * The output of a command in colours: its last lines, with the earlier lines collapsed and counted. Lines are added as they
 * come. The oldest lines of a very long output are removed. `open` opens all that there is of it in an editor.
 */
export class TerminalView {
  readonly element: HTMLElement
  private readonly lines = el('pre', { class: 'terminal folded', tabindex: 0, 'aria-label': 'Output' })
  private readonly count = el('span')
  private readonly toggle = el('button', { class: 'text-button', type: 'button', onclick: () => { this.unfold() } })
  private readonly fold: HTMLElement
  private dropped = 0
  /** Lines that are in no record. */
  private missing = 0
  private gaps = 0
  private readonly parser = createAnsiSequenceParser()
  private line = el('span', { class: 'line' })
  private waiting = ''
  /** After a single carriage return, the next text replaces this line. */
  private returned = false

  constructor(text = '', open?: () => void) {
    this.fold = el('div', { class: 'output-fold', hidden: true }, this.count, this.toggle, open && el('button', { class: 'text-button open-output', type: 'button', onclick: open }, 'Open in editor'))
    this.element = el('div', { class: 'output' }, this.fold, this.lines)
    this.lines.append(this.line)
    // The end stays visible, also if it is expanded or resized later.
    new ResizeObserver(() => { if (this.lines.classList.contains('folded')) this.lines.scrollTop = this.lines.scrollHeight }).observe(this.lines)
    this.updateToggle()
    if (text) this.append(text)
  }

  append(data: string): void {
    const stuck = this.lines.scrollTop + this.lines.clientHeight >= this.lines.scrollHeight - 24
    let text = this.waiting + data
    const cut = UNFINISHED.exec(text)
    this.waiting = cut?.[0] ?? (text.endsWith('\r') ? '\r' : '')
    if (this.waiting) text = text.slice(0, -this.waiting.length)
    for (const piece of text.replace(OTHERS, '').split(/(\r\n|\n|\r)/)) {
      if (piece === '\r\n' || piece === '\n') this.newLine()
      else if (piece === '\r') this.returned = true
      else if (piece) this.write(piece)
    }
    this.updateToggle()
    if (stuck) this.lines.scrollTop = this.lines.scrollHeight
  }

  private unfold(): void {
    this.lines.classList.toggle('folded')
    this.updateToggle()
    this.lines.scrollTop = this.lines.classList.contains('folded') ? this.lines.scrollHeight : 0
  }

  /** Update the number of collapsed lines. The last line is empty if the output ends with a line break. */
  private updateToggle(): void {
    const folded = this.lines.classList.contains('folded')
    const shown = this.lines.childElementCount - (this.line.childNodes.length === 0 ? 1 : 0)
    const all = shown - this.gaps + this.dropped + this.missing
    this.fold.hidden = this.lines.childElementCount <= SHOWN_LINES
    const gone = this.dropped > 0 ? ` The first ${this.dropped.toLocaleString('en')} are not kept here.` : ''
    const missing = this.missing > 0 ? ` ${this.missing.toLocaleString('en')} in the middle were not kept.` : ''
    const count = folded ? `${(all - Math.min(shown, SHOWN_LINES - (this.line.childNodes.length === 0 ? 1 : 0))).toLocaleString('en')} earlier lines of ${all.toLocaleString('en')}` : `${all.toLocaleString('en')} lines`
    this.count.textContent = `${count}.${missing}${gone}`
    this.toggle.textContent = folded ? 'Open all' : 'Fold'
  }

  private newLine(): void {
    this.returned = false
    const gap = GAP.exec(this.line.textContent)
    if (gap) {
      this.line.classList.add('gap')
      this.gaps += 1
      this.missing += Number((gap[1] ?? '1').replaceAll(',', ''))
    }
    this.line.append('\n')
    this.line = el('span', { class: 'line' })
    this.lines.append(this.line)
    while (this.lines.childElementCount > MOST_LINES) {
      this.lines.firstElementChild?.remove()
      this.dropped += 1
    }
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
      let foreground = colour(token.foreground)
      let background = colour(token.background)
      if (token.decorations.has('reverse')) [foreground, background] = [background ?? 'var(--vscode-terminal-background, var(--vscode-editor-background))', foreground ?? 'var(--vscode-terminal-foreground, var(--vscode-editor-foreground))']
      if (foreground) span.style.color = foreground
      if (background) span.style.backgroundColor = background
      this.line.append(span)
    }
  }
}

// The first 16 colours of the table of 256.
const NAMED = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white', 'brightBlack', 'brightRed', 'brightGreen', 'brightYellow', 'brightBlue', 'brightMagenta', 'brightCyan', 'brightWhite'] as const

type Colour = ReturnType<ReturnType<typeof createAnsiSequenceParser>['parse']>[number]['foreground']

/** The terminal colours of the editor for named colours. */
function colour(value: Colour): string | undefined {
  if (!value) return undefined
  if (value.type === 'named') return `var(--vscode-terminal-ansi${value.name.charAt(0).toUpperCase()}${value.name.slice(1)})`
  if (value.type === 'rgb') return `rgb(${value.rgb.join(',')})`
  const { index } = value
  if (index < 16) return colour({ type: 'named', name: NAMED[index] ?? 'white' })
  if (index >= 232) {
    const grey = 8 + (index - 232) * 10
    return `rgb(${grey},${grey},${grey})`
  }
  const level = (part: number): number => (part === 0 ? 0 : 55 + part * 40)
  const at = index - 16
  return `rgb(${level(Math.floor(at / 36))},${level(Math.floor(at / 6) % 6)},${level(at % 6)})`
}
