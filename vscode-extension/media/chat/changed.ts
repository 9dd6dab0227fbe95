import type { ChangedFile, ChangedHunk } from '../../src/acp/changes'
import { hunkRows } from './change'
import { el, icon, iconButton, withVisibleCharacters } from './dom'
import { host } from './host'

const SIGNS = { added: 'diff-added', deleted: 'diff-removed', modified: 'diff-modified' } as const

/** The files that the agent changed and the user has not kept, above the composer: kept or undone by file, by hunk, or all. */
export class ChangedFiles {
  readonly element = el('section', { class: 'strip changed', 'aria-label': 'Files changed', hidden: true })
  private files: readonly ChangedFile[] = []
  private canRedo = false
  private running = false
  private open = false
  /** The files whose hunks are shown. */
  private readonly unfolded = new Set<string>()
  private shape = ''

  constructor(
    private readonly focus: () => void,
    private readonly say: (words: string) => void,
  ) {}

  set(files: readonly ChangedFile[], canRedo: boolean): void {
    if (canRedo && !this.canRedo) this.say('Files restored. The button Redo takes that back.')
    this.files = files
    this.canRedo = canRedo
    this.draw()
  }

  /** While the agent works, changes can be read, but not kept or undone. */
  setRunning(running: boolean): void {
    this.running = running
    this.draw()
  }

  private draw(): void {
    const shape = JSON.stringify([this.files, this.canRedo, this.running, this.open, [...this.unfolded]])
    // New buttons would lose the focus, and lists their position.
    if (shape === this.shape) return
    this.shape = shape
    const { files } = this
    const focused = this.element.contains(document.activeElement) ? (document.activeElement?.getAttribute('data-key') ?? '') : undefined
    const scrolled = this.element.querySelector('.changed-list')?.scrollTop ?? 0
    this.element.hidden = files.length === 0 && !this.canRedo
    this.element.replaceChildren(this.bar(), ...(this.open && files.length > 0 ? [el('div', { class: 'changed-list' }, this.rows('Files changed', files.filter((file) => !file.perhapsYours)), this.rows('Changed while a command ran, perhaps by you', files.filter((file) => file.perhapsYours)))] : []))
    const list = this.element.querySelector('.changed-list')
    if (list) list.scrollTop = scrolled
    if (focused === undefined) return
    const again = [...this.element.querySelectorAll<HTMLElement>('[data-key]')]
    const same = again.find((each) => each.dataset.key === focused) ?? again[0]
    if (same && !this.element.hidden) same.focus()
    else this.focus()
  }

  private bar(): HTMLElement {
    const { files } = this
    const added = files.reduce((sum, file) => sum + file.added, 0)
    const removed = files.reduce((sum, file) => sum + file.removed, 0)
    const toggle = el(
      'button',
      { class: 'toggle', type: 'button', 'aria-expanded': String(this.open), 'data-key': 'toggle', onclick: () => { this.open = !this.open; this.draw() } },
      icon('chevron-right', 'chevron'),
      el('span', { class: 'title' }, files.length === 1 ? '1 file changed' : `${files.length} files changed`),
      counts(added, removed),
    )
    const act = (key: string, words: string, title: string, press: () => void): HTMLElement =>
      el('button', { class: 'text-button', type: 'button', title, 'data-key': key, 'aria-disabled': this.running ? 'true' : undefined, onclick: () => { if (!this.running) press() } }, words)
    return el(
      'div',
      { class: 'strip-bar' },
      files.length > 0 ? toggle : el('span', { class: 'title' }, 'Files restored'),
      el(
        'span',
        { class: 'row-buttons' },
        this.canRedo && act('redo', 'Redo', 'Take the last undo or restore back', () => { host.postMessage({ type: 'redoChange' }) }),
        files.some((file) => file.hunks.length > 0) && this.step('previous', 'arrow-up', 'P'),
        files.some((file) => file.hunks.length > 0) && this.step('next', 'arrow-down', 'N'),
        files.length > 0 && act('keep all', 'Keep all', 'Keep all changes: they are not listed any more', () => { host.postMessage({ type: 'keepChange' }) }),
        files.length > 0 && act('undo all', 'Undo all', 'Undo all changes that are listed', () => { host.postMessage({ type: 'undoChange' }) }),
      ),
    )
  }

  private rows(title: string, files: readonly ChangedFile[]): HTMLElement | false {
    if (files.length === 0) return false
    const list = el('ul', { 'aria-label': title }, ...files.map((file) => this.row(file)))
    return files.some((file) => file.perhapsYours) ? el('div', {}, el('h3', { class: 'perhaps', title: 'The system does not say which program changes a file. Undo asks before it touches these.' }, title), list) : list
  }

  private row(file: ChangedFile): HTMLElement {
    const { path, version } = file
    const shown = this.unfolded.has(path)
    const name = path.slice(path.lastIndexOf('/') + 1)
    const toggle = (): void => {
      if (shown) this.unfolded.delete(path)
      else this.unfolded.add(path)
      this.draw()
    }
    const label = [icon(SIGNS[file.status], file.status), el('span', { class: 'path', title: path }, ...withVisibleCharacters(name, 'command'), ' ', el('span', { class: 'about' }, ...withVisibleCharacters(path.slice(0, Math.max(0, path.length - name.length - 1)), 'command'))), counts(file.added, file.removed)]
    return el(
      'li',
      { class: 'changed-file', 'data-path': path },
      el(
        'div',
        { class: 'file-bar' },
        file.hunks.length > 0
          ? el('button', { class: 'toggle', type: 'button', 'aria-expanded': String(shown), 'data-key': `${path} toggle`, onclick: toggle }, icon('chevron-right', 'chevron'), ...label)
          : el('span', { class: 'toggle bare' }, ...label),
        el('span', { class: 'row-buttons' }, this.button('diff', `Open the diff of ${name}`, `${path} diff`, () => { host.postMessage({ type: 'openChange', path }) }, true), ...this.choices(name, `${path} file`, { path, version })),
      ),
      shown && el('div', { class: 'hunks' }, ...file.hunks.map((hunk) => this.hunk(file, hunk)), file.left > 0 && el('button', { class: 'more-lines', type: 'button', onclick: () => { host.postMessage({ type: 'openChange', path }) } }, `${file.left.toLocaleString('en')} more lines are not shown here. Open the diff editor to read them.`)),
    )
  }

  private hunk({ path, version }: ChangedFile, hunk: ChangedHunk): HTMLElement {
    const words = `Line ${hunk.newStart}`
    return el(
      'div',
      { class: 'hunk', role: 'group', 'aria-label': `Change at line ${hunk.newStart}` },
      el('div', { class: 'hunk-bar' }, el('span', { class: 'about' }, words), el('span', { class: 'row-buttons' }, ...this.choices(`the change at line ${hunk.newStart}`, `${path} ${hunk.number}`, { path, version, hunk: hunk.number }))),
      el('div', { class: 'rows', tabindex: 0, role: 'document', 'aria-label': `Lines of ${path}` }, ...hunkRows(hunk)),
    )
  }

  private choices(what: string, key: string, choice: { readonly path: string; readonly version: string; readonly hunk?: number }): HTMLElement[] {
    return [
      this.button('check', `Keep ${what}`, `${key} keep`, () => { host.postMessage({ type: 'keepChange', ...choice }) }),
      this.button('discard', `Undo ${what}`, `${key} undo`, () => { host.postMessage({ type: 'undoChange', ...choice }) }),
    ]
  }

  /** A button to the next or the previous change in the text. */
  private step(direction: 'next' | 'previous', sign: string, key: string): HTMLElement {
    const name = direction === 'next' ? 'Next change' : 'Previous change'
    const button = this.button(sign, name, direction, () => { host.postMessage({ type: 'goToChange', direction }) }, true)
    button.title = `${name} in the text, over all files (${navigator.platform.startsWith('Mac') ? '⌥⌘' : 'Ctrl+Alt+'}${key})`
    return button
  }

  private button(sign: string, label: string, key: string, press: () => void, always = false): HTMLElement {
    const button = iconButton(sign, label, () => { if (always || !this.running) press() })
    button.dataset.key = key
    if (!always && this.running) button.setAttribute('aria-disabled', 'true')
    return button
  }
}

function counts(added: number, removed: number): HTMLElement {
  return el('span', { class: 'counts' }, el('span', { class: 'plus' }, `+${added}`), ' ', el('span', { class: 'minus' }, `−${removed}`))
}
