import { fileNamed, isShell, languageOf } from '../../src/chat/fences'
import { diagram } from './diagram'
import { copyButton, el, iconButton } from './dom'
import { highlighted } from './highlight'
import { host } from './host'

interface Place {
  /** Whether no more text comes. */
  readonly final?: boolean
  /** Whether the fence has its end: a part of a diagram is not drawn. */
  readonly closed?: boolean
  /** The text before it, which may name its file. */
  readonly before?: string
  /** Whether it is meant for use: what a tool got is only read. */
  readonly used?: boolean
}

/** A block of code with its buttons. `info` is what the fence says. */
export function codeBlock(text: string, info: string, { final = true, closed = false, before = '', used = true }: Place = {}): HTMLElement {
  const language = languageOf(info)
  const file = fileNamed(info, before)
  const code = el('code', {}, ...(final ? highlighted(text, language) : [text]))
  const source = el('pre', { tabindex: 0, 'aria-label': language ? `Code (${language})` : 'Code' }, code)
  const drawn = closed && language === 'mermaid' ? diagram(text, source) : undefined
  return el(
    'div',
    { class: 'code-block', dir: 'ltr' },
    el(
      'div',
      { class: 'code-bar' },
      el('span', { class: 'language' }, language),
      el('span', { class: 'space' }),
      drawn?.toggle,
      copyButton('Copy', () => { host.postMessage({ type: 'copy', text }) }),
      iconButton('insert', 'Insert at the cursor', () => { host.postMessage({ type: 'insert', text }) }),
      used && iconButton('diff', `Apply to ${file ?? 'file'}… (replaces the selection or the whole file; shows the change first)`, () => { host.postMessage({ type: 'applyCode', text, ...(file === undefined ? {} : { file }) }) }),
      used && iconButton('new-file', 'New file with this code', () => { host.postMessage({ type: 'newFile', text, language }) }),
      isShell(language) && iconButton('terminal', 'Run in terminal… (one line waits for Enter; more lines ask first)', () => { host.postMessage({ type: 'runInTerminal', text, language }) }),
    ),
    drawn?.element ?? source,
  )
}
