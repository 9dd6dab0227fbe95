import type { Attachment } from '../../src/chat/items'
import { el, icon } from './dom'
import { host } from './host'
import { KINDS } from './items'

export interface Suggestion {
  readonly label: string
  readonly detail: string
  readonly icon: string
  /** The text that replaces the typed text. */
  readonly insert: string
  readonly attachment?: Attachment
}

interface SlashCommand {
  readonly name: string
  readonly description: string
  readonly hint: string
}


/** Suggestions for `/` at the beginning and `@` anywhere, for keyboard and mouse (WAI-ARIA combobox). */
export class Completion {
  readonly element = el('div', { class: 'completion', role: 'listbox', id: 'suggestions', 'aria-label': 'Suggestions', hidden: true })
  private commands: readonly SlashCommand[] = []
  private shown: readonly Suggestion[] = []
  private at = 0
  private asked = 0
  private start = 0
  /** The suggestions for the typed text have not come yet: what is shown belongs to an earlier text. */
  private pending = false
  /** A key chose while they were pending: take the first when they come. */
  private takeFirst = false

  constructor(
    private readonly input: HTMLTextAreaElement,
    private readonly chosen: (suggestion: Suggestion, from: number, to: number) => void,
  ) {
    input.setAttribute('aria-controls', 'suggestions')
    input.setAttribute('aria-autocomplete', 'list')
  }

  get visible(): boolean {
    return !this.element.hidden
  }

  /** The commands of the session. A new session sends them while the user may already be typing one. */
  setCommands(commands: readonly SlashCommand[]): void {
    const changed = JSON.stringify(commands) !== JSON.stringify(this.commands)
    this.commands = commands
    if (changed && document.activeElement === this.input && this.input.value.startsWith('/')) this.update()
  }

  /** The typed text or the cursor changed. */
  update(): void {
    this.pending = this.takeFirst = false
    const before = this.input.value.slice(0, this.input.selectionStart)
    const command = /^\/([\w-]*)$/.exec(before)
    if (command) {
      this.start = 0
      const typed = command[1] ?? ''
      this.show(
        this.commands
          .filter((each) => each.name.startsWith(typed))
          .map((each) => ({ label: `/${each.name}`, detail: each.hint ? `${each.description} (${each.hint})` : each.description, icon: 'terminal-cmd', insert: each.hint ? `/${each.name} ` : `/${each.name}` })),
      )
      return
    }
    const mention = /(?:^|\s)@([^\s@]*)$/.exec(before)
    if (mention) {
      const query = mention[1] ?? ''
      this.start = before.length - query.length - 1
      this.asked += 1
      this.pending = true
      host.postMessage({ type: 'mention', ask: this.asked, query })
      return
    }
    this.hide()
  }

  /** `note` says why there are none. */
  found(ask: number, attachments: readonly Attachment[], note = ''): void {
    if (ask !== this.asked) return
    const take = this.takeFirst
    this.pending = this.takeFirst = false
    this.show(
      attachments.map((each) => {
        const base = { label: each.name, detail: each.detail ?? '', icon: KINDS[each.kind] }
        // Without an address it only leads to more suggestions.
        return each.uri === undefined ? { ...base, insert: `@${each.name}` } : { ...base, insert: `@${each.name} `, attachment: each }
      }),
    )
    if (take && this.shown.length > 0) this.take(0)
    if (attachments.length === 0 && note !== '') this.say(note)
  }

  /** Show words instead of suggestions. */
  private say(note: string): void {
    this.element.replaceChildren(el('div', { class: 'suggestion note', role: 'option', 'aria-disabled': 'true', 'aria-selected': 'false' }, icon('info'), el('span', { class: 'label' }, note)))
    this.element.hidden = false
    this.input.setAttribute('aria-expanded', 'true')
  }

  hide(): void {
    this.asked += 1
    this.pending = this.takeFirst = false
    this.element.hidden = true
    this.input.setAttribute('aria-expanded', 'false')
    this.input.removeAttribute('aria-activedescendant')
  }

  /** Handle a key. True if it was for the suggestions. */
  key(event: KeyboardEvent): boolean {
    if (!this.visible || (this.shown.length === 0 && event.key !== 'Escape')) return false
    switch (event.key) {
      case 'ArrowDown':
        this.select((this.at + 1) % this.shown.length)
        break
      case 'ArrowUp':
        this.select((this.at + this.shown.length - 1) % this.shown.length)
        break
      case 'Enter':
        // A completely typed command is sent.
        if (this.shown[this.at]?.insert === this.input.value) {
          this.hide()
          return false
        }
        this.takeSelected()
        break
      case 'Tab':
        this.takeSelected()
        break
      case 'Escape':
        this.hide()
        break
      default:
        return false
    }
    event.preventDefault()
    return true
  }

  private show(suggestions: readonly Suggestion[]): void {
    this.shown = suggestions
    if (suggestions.length === 0) {
      this.hide()
      return
    }
    this.element.replaceChildren(
      ...suggestions.map((each, at) =>
        el(
          'div',
          { class: 'suggestion', role: 'option', id: `suggestion-${at}`, onmousedown: (event: MouseEvent) => { event.preventDefault(); this.take(at) } },
          icon(each.icon),
          el('span', { class: 'label' }, each.label),
          el('span', { class: 'detail' }, each.detail === each.label ? '' : each.detail),
        ),
      ),
    )
    this.element.hidden = false
    this.input.setAttribute('aria-expanded', 'true')
    this.select(0)
  }

  private select(at: number): void {
    this.at = at
    for (const [index, option] of [...this.element.children].entries()) {
      option.setAttribute('aria-selected', String(index === at))
      if (index === at) option.scrollIntoView({ block: 'nearest' })
    }
    this.input.setAttribute('aria-activedescendant', `suggestion-${at}`)
  }

  private takeSelected(): void {
    if (this.pending) this.takeFirst = true
    else this.take(this.at)
  }

  private take(at: number): void {
    const suggestion = this.shown[at]
    const to = this.input.selectionStart
    // One that leads to more stays until they come.
    if (suggestion?.insert.endsWith(':') !== true) this.hide()
    if (suggestion) this.chosen(suggestion, this.start, to)
  }
}
