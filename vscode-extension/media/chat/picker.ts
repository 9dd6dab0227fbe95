import type { Choice } from '../../src/chat/messages'
import { PROVIDERS } from '../../src/chat/state'
import { el, icon } from './dom'
import { host } from './host'

const MOST_SHOWN = 300

type Value = Choice['values'][number]

/** A searchable, grouped list above the input, for options with many values such as models. */
export class Picker {
  readonly element: HTMLElement
  private readonly search: HTMLInputElement
  private readonly list = el('div', { class: 'picker-list', role: 'listbox', id: 'picker-list' })
  private readonly more = el('button', { class: 'picker-more', type: 'button', onclick: () => { this.signIn() } }, icon('add'), 'Add a model: a key, a server, this machine…')
  private choice: Choice | undefined
  private button: HTMLElement | undefined
  private rows: { readonly row: HTMLElement; readonly value: Value }[] = []
  private at = 0

  constructor(private readonly chosen: (id: string, value: string) => void) {
    this.search = el('input', { type: 'text', role: 'combobox', 'aria-expanded': 'true', 'aria-controls': 'picker-list', 'aria-autocomplete': 'list', autocomplete: 'off', spellcheck: 'false' })
    this.element = el('div', { class: 'picker', hidden: true }, this.search, this.list, this.more)
    this.search.addEventListener('input', () => { this.draw() })
    this.search.addEventListener('keydown', (event) => { this.key(event) })
    this.element.addEventListener('focusout', (event) => {
      if (!this.element.contains(event.relatedTarget as Node | null) && event.relatedTarget !== this.button) this.hide()
    })
  }

  toggle(choice: Choice, button: HTMLElement): void {
    if (!this.element.hidden && this.choice?.id === choice.id) {
      this.hide()
      return
    }
    this.choice = choice
    this.button = button
    const label = `Search ${choice.name.toLowerCase()}s`
    this.search.placeholder = label
    this.search.setAttribute('aria-label', label)
    this.list.setAttribute('aria-label', choice.name)
    this.search.value = ''
    this.element.hidden = false
    button.setAttribute('aria-expanded', 'true')
    this.draw()
    this.search.focus()
  }

  /** The option has changed, as when a list of models comes late. An open list has it too, at the row where it was. */
  update(choice: Choice, button: HTMLElement): void {
    if (this.choice?.id !== choice.id) return
    this.choice = choice
    this.button = button
    if (this.element.hidden) return
    button.setAttribute('aria-expanded', 'true')
    const here = this.rows[this.at]?.value.value
    this.draw()
    const place = this.rows.findIndex(({ value }) => value.value === here)
    if (place >= 0) this.go(place)
  }

  hide(): void {
    if (this.element.hidden) return
    this.element.hidden = true
    this.button?.setAttribute('aria-expanded', 'false')
  }

  private draw(): void {
    const { choice } = this
    if (!choice) return
    const wanted = this.search.value.toLowerCase().split(/\s+/).filter(Boolean)
    const fitting = choice.values.filter((value) => {
      const text = `${value.name} ${value.value} ${groupOf(choice, value)}`.toLowerCase()
      return wanted.every((word) => text.includes(word))
    })
    const groups = new Map<string, Value[]>()
    for (const value of fitting.slice(0, MOST_SHOWN)) {
      const name = groupOf(choice, value)
      groups.set(name, [...(groups.get(name) ?? []), value])
    }
    this.rows = []
    const made: HTMLElement[] = []
    for (const [name, values] of groups) {
      const rows = values.map((value) => this.row(choice, value))
      made.push(name === '' ? el('div', { role: 'group', 'aria-label': choice.name }, ...rows) : el('div', { role: 'group', 'aria-label': name }, el('div', { class: 'picker-group', 'aria-hidden': 'true' }, name), ...rows))
    }
    if (fitting.length > MOST_SHOWN) made.push(el('p', { class: 'none' }, `${fitting.length - MOST_SHOWN} more. Type to search.`))
    if (fitting.length === 0) made.push(el('p', { class: 'none' }, `No match for “${this.search.value}”.`))
    this.list.replaceChildren(...made)
    this.more.hidden = choice.category !== 'model'
    const current = this.rows.findIndex(({ value }) => value.value === choice.value)
    this.go(wanted.length > 0 || current < 0 ? 0 : current)
  }

  private row(choice: Choice, value: Value): HTMLElement {
    const current = value.value === choice.value
    const about = value.description && value.description !== value.name ? value.description : ''
    const row = el(
      'div',
      { class: 'picker-row', role: 'option', id: `picker-${this.rows.length}`, 'aria-selected': 'false', 'data-value': value.value, onmousedown: (event: MouseEvent) => { event.preventDefault() }, onclick: () => { this.take(value) } },
      icon(current ? 'check' : 'blank'),
      el('span', { class: 'inner' }, el('span', { class: 'name' }, shortName(value)), current && el('span', { class: 'hidden-words' }, ' (in use)'), about !== '' && el('span', { class: 'about' }, about)),
    )
    this.rows.push({ row, value })
    return row
  }

  private go(to: number): void {
    this.rows[this.at]?.row.setAttribute('aria-selected', 'false')
    this.at = Math.max(0, Math.min(this.rows.length - 1, to))
    const now = this.rows[this.at]?.row
    now?.setAttribute('aria-selected', 'true')
    now?.scrollIntoView({ block: 'nearest' })
    if (now) this.search.setAttribute('aria-activedescendant', now.id)
    else this.search.removeAttribute('aria-activedescendant')
  }

  private key(event: KeyboardEvent): void {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key]
    if (step !== undefined) {
      event.preventDefault()
      this.go(this.at + step)
    } else if (event.key === 'Enter') {
      event.preventDefault()
      const value = this.rows[this.at]?.value
      if (value) this.take(value)
    } else if (event.key === 'Escape') {
      event.preventDefault()
      event.stopPropagation()
      this.hide()
      this.button?.focus()
    }
  }

  private signIn(): void {
    this.hide()
    this.button?.focus()
    host.postMessage({ type: 'signIn' })
  }

  private take(value: Value): void {
    const { choice } = this
    this.hide()
    this.button?.focus()
    if (choice && value.value !== choice.value) this.chosen(choice.id, value.value)
  }
}

/** The group of a value, or its provider, which is the text before the colon. */
function groupOf(choice: Choice, value: Value): string {
  if (value.group !== undefined) return value.group
  if (choice.category !== 'model') return ''
  const provider = /^([a-z][\w-]*):/.exec(value.value)?.[1]
  return provider === undefined ? '' : (PROVIDERS[provider] ?? provider)
}

/** The name of a model without its provider, which is the group's title. */
export function shortName(value: Value): string {
  return /^[a-z][\w-]*:(.+)$/.exec(value.name)?.[1] ?? value.name
}
