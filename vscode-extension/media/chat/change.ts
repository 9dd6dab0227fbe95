import type { DiffPart } from '../../src/chat/items'
import { el, icon, iconButton } from './dom'
import { host } from './host'

/** A change of a file: its lines with their numbers, and a way to the diff editor. */
export function change(itemId: string, part: DiffPart): HTMLElement {
  const open = (): void => { host.postMessage({ type: 'diff', item: itemId, path: part.path }) }
  const rows = part.hunks.flatMap((hunk, at) => {
    let before = hunk.oldStart
    let after = hunk.newStart
    const lines = hunk.lines.map((line) => {
      const sign = line.charAt(0)
      const number = sign === '-' ? before : after
      if (sign !== '+') before += 1
      if (sign !== '-') after += 1
      const kind = sign === '+' ? 'added' : sign === '-' ? 'removed' : 'same'
      return el('div', { class: `row ${kind}` }, el('span', { class: 'number', 'aria-hidden': 'true' }, String(number)), el('span', { class: 'sign' }, sign === ' ' ? ' ' : sign), el('span', { class: 'text' }, line.slice(1)))
    })
    return at === 0 ? lines : [el('div', { class: 'gap', 'aria-hidden': 'true' }, '⋯'), ...lines]
  })
  return el(
    'div',
    { class: 'change', role: 'group', 'aria-label': `Change of ${part.shown}, ${part.added} lines added, ${part.removed} removed` },
    el(
      'div',
      { class: 'change-bar' },
      icon(part.isNew ? 'diff-added' : 'diff-modified'),
      el('button', { class: 'path', type: 'button', title: `Open ${part.path}`, onclick: () => { host.postMessage({ type: 'location', path: part.path }) } }, part.shown),
      el('span', { class: 'counts' }, el('span', { class: 'plus' }, `+${part.added}`), ' ', el('span', { class: 'minus' }, `−${part.removed}`)),
      iconButton('diff', 'Open in the diff editor', open, 'open-diff'),
    ),
    el('div', { class: 'rows', tabindex: 0, role: 'document' }, el('div', { class: 'rows-inner' }, ...rows)),
    part.left > 0 && el('button', { class: 'more-lines', type: 'button', onclick: open }, `${part.left} more lines: open the diff editor`),
  )
}
