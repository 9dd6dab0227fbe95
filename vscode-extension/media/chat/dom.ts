import { pieces } from '../../src/chat/visible'

/** Helpers to create elements. Text is always inserted as text, never as HTML. */

const COPIED_MS = 1500

type Child = Node | string | undefined | false
type Props = Readonly<Record<string, string | number | boolean | undefined | ((event: never) => void)>>

/** Create an element. Props that begin with `on` are listeners, all others attributes (true: an empty one; false and undefined: none). */
export function el<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: readonly Child[]): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === 'function') made.addEventListener(name.slice(2), value as unknown as EventListener)
    else if (value === true) made.setAttribute(name, '')
    else if (value !== undefined && value !== false) made.setAttribute(name, String(value))
  }
  made.append(...children.filter((child): child is Node | string => child !== undefined && child !== false))
  return made
}

/** An icon of the editor, hidden from screen readers. */
export function icon(name: string, more = ''): HTMLElement {
  return el('span', { class: `codicon codicon-${name} ${more}`.trim(), 'aria-hidden': 'true' })
}

/** A button with an icon and no text. */
export function iconButton(name: string, label: string, press: () => void, more = ''): HTMLButtonElement {
  return el('button', { class: `icon-button ${more}`.trim(), type: 'button', title: label, 'aria-label': label, onclick: press }, icon(name))
}

/** Like `iconButton`, with a check mark for a moment after it was pressed. */
export function copyButton(label: string, press: () => void): HTMLButtonElement {
  const button = iconButton('copy', label, () => {
    press()
    const done = icon('check')
    button.replaceChildren(done)
    setTimeout(() => { if (done.isConnected) button.replaceChildren(icon('copy')) }, COPIED_MS)
  })
  return button
}

/** Text for a decision of the user: misleading characters are replaced by their descriptions. */
export function withVisibleCharacters(text: string, kind: 'command' | 'code' = 'code'): (Node | string)[] {
  return pieces(text, kind).map((piece) => (typeof piece === 'string' ? piece : el('mark', { class: 'spelled', title: piece.why }, piece.shown)))
}
