import { diffWordsWithSpace } from 'diff'
import type { DiffPart, Hunk } from '../../src/chat/items'
import { el, icon, iconButton, withVisibleCharacters } from './dom'
import { host } from './host'

const MOST_COMPARED = 2000

/** A file change: lines with numbers, marks for differences within lines, and a link to the diff editor. */
export function change(itemId: string, part: DiffPart): HTMLElement {
  const open = (): void => { host.postMessage({ type: 'diff', item: itemId, path: part.path }) }
  const rows = part.hunks.flatMap((hunk, at) => (at === 0 ? hunkRows(hunk) : [el('div', { class: 'gap', 'aria-hidden': 'true' }, '⋯'), ...hunkRows(hunk)]))
  const missing = [part.left > 0 ? `${part.left.toLocaleString('en')} more lines` : '', part.cut ? `${part.cut.toLocaleString('en')} more characters of long lines` : ''].filter(Boolean).join(', ')
  return el(
    'div',
    { class: 'change', role: 'group', 'aria-label': `${part.isNew ? 'New file' : 'Change of'} ${part.shown}, ${part.added} lines added, ${part.removed} removed` },
    el(
      'div',
      { class: 'change-bar' },
      icon(part.isNew ? 'diff-added' : 'diff-modified'),
      el('button', { class: 'path', type: 'button', title: `Open ${part.path}`, onclick: () => { host.postMessage({ type: 'location', path: part.path }) } }, ...withVisibleCharacters(part.shown, 'command')),
      el('span', { class: 'counts' }, el('span', { class: 'plus' }, `+${part.added}`), ' ', el('span', { class: 'minus' }, `−${part.removed}`)),
      iconButton('diff', `Open the change of ${part.shown} in the diff editor`, open, 'open-diff'),
    ),
    rows.length > 0 && el('div', { class: 'rows', tabindex: 0, role: 'document', 'aria-label': `Lines of ${part.shown}` }, ...rows),
    missing !== '' && el('button', { class: 'more-lines', type: 'button', onclick: open }, `${missing} are not shown here. Open the diff editor to read them.`),
  )
}

/** The lines of a hunk with their numbers. */
export function hunkRows(hunk: Hunk): HTMLElement[] {
  let before = hunk.oldStart
  let after = hunk.newStart
  const texts = compareLines(hunk.lines)
  return hunk.lines.map((line, index) => {
    const sign = line.charAt(0)
    const number = sign === '-' ? before : after
    if (sign !== '+') before += 1
    if (sign !== '-') after += 1
    const kind = sign === '+' ? 'added' : sign === '-' ? 'removed' : 'same'
    const text = texts.get(index) ?? withVisibleCharacters(line.slice(1))
    return el('div', { class: `row ${kind}` }, el('span', { class: 'number', 'aria-hidden': 'true' }, String(number)), el('span', { class: 'sign' }, sign === ' ' ? ' ' : sign), el('span', { class: 'text' }, ...text))
  })
}

/** The marked content of lines that replace the same number of lines, by index of the line. */
function compareLines(lines: readonly string[]): Map<number, (Node | string)[]> {
  const made = new Map<number, (Node | string)[]>()
  for (let at = 0; at < lines.length; at += 1) {
    let removed = at
    while (lines[removed]?.startsWith('-')) removed += 1
    let added = removed
    while (lines[added]?.startsWith('+')) added += 1
    const count = removed - at
    if (count > 0 && added - removed === count) {
      for (let each = 0; each < count; each += 1) {
        const pair = differing(lines[at + each]?.slice(1) ?? '', lines[removed + each]?.slice(1) ?? '')
        if (!pair) continue
        made.set(at + each, pair[0])
        made.set(removed + each, pair[1])
      }
    }
    if (added > at) at = added - 1
  }
  return made
}

/** Both lines with marks for their differences; undefined if they have little in common. */
function differing(before: string, after: string): [(Node | string)[], (Node | string)[]] | undefined {
  if (before.length + after.length > MOST_COMPARED) return undefined
  const parts = diffWordsWithSpace(before, after)
  const common = parts.reduce((sum, part) => sum + (part.added || part.removed ? 0 : part.value.trim().length), 0)
  if (common * 4 < Math.min(before.trim().length, after.trim().length)) return undefined
  const side = (other: 'added' | 'removed'): (Node | string)[] =>
    parts.filter((part) => !part[other]).flatMap((part) => (part.added || part.removed ? [el('span', { class: 'differs' }, ...withVisibleCharacters(part.value))] : withVisibleCharacters(part.value)))
  return [side('added'), side('removed')]
}
