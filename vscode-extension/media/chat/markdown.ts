import { Lexer, Marked, type Token, type Tokens } from 'marked'
import { codeBlock } from './codeblock'
import { el, icon } from './dom'
import { formula } from './formula'
import { host } from './host'
import { formulas, type Formula } from './math'
import { picture } from './picture'

const markdown = new Marked(formulas)

const LARGE = 40_000
// A fence that has its end.
const CLOSED = /^ {0,3}(`{3,}|~{3,})[^\n]*\n(?:[\s\S]*\n)?[ \t]*\1[`~]*\s*$/
const LARGE_PAUSE_MS = 300
// A separator within a name.
const SEPARATED = /(?<=[\w.][/\\_.:@=-])(?=\w{3})/

/** A block that may change when more text comes. */
interface Open {
  readonly raw: string
  readonly final: boolean
  readonly before: string
  readonly element: HTMLElement | undefined
}

/**
 * Growing Markdown. The last two blocks are created again if they have changed, all others once. (Two, because a list goes on
 * after a blank line, and the first character of its next item still looks like a paragraph.) HTML is shown as
 * text, pictures are links to them, and links go to the extension host, which opens only pages and files.
 */
export class MarkdownView {
  readonly element = el('div', { class: 'markdown' })
  private tail = ''
  private open: Open[] = []
  /** The text of the last block that does not change any more. */
  private before = ''
  private frame = 0
  private timer = 0
  private finished: boolean

  constructor(text = '', streaming = false) {
    this.tail = text
    this.finished = !streaming
    this.render()
  }

  /** Add text at the end, also after `finish`: a late piece belongs to the block that it continues. */
  append(text: string): void {
    this.tail += text
    if (this.tail.length > LARGE) {
      if (!this.timer) {
        this.timer = window.setTimeout(() => {
          this.timer = 0
          this.render()
        }, LARGE_PAUSE_MS)
      }
    } else if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0
        this.render()
      })
    }
  }

  /** The text is complete: create the last block. */
  finish(): void {
    cancelAnimationFrame(this.frame)
    window.clearTimeout(this.timer)
    this.frame = this.timer = 0
    this.finished = true
    this.render()
  }

  private render(): void {
    const tokens = markdown.lexer(this.tail)
    const written = [...tokens.keys()].filter((at) => tokens[at]?.type !== 'space')
    const last = written.at(-1) ?? 0
    const first = written.at(-2) ?? last
    const earlier = this.open
    // The address of a link may have come only now.
    const defines = tokens.some(({ type }) => type === 'def')
    let { before } = this
    const made = tokens.map((token, at): Open => {
      const final = this.finished || at !== last
      const { raw } = token
      const kept = earlier[at]
      const same = !defines && kept !== undefined && kept.raw === raw && kept.final === final && kept.before === before
      const now = { raw, final, before, element: same ? kept.element : block(token, final, before) }
      if (token.type !== 'space') before = raw
      return now
    })
    const elements = made.map(({ element }) => element).filter((element) => element !== undefined)
    for (const { element } of earlier) if (element !== undefined && !elements.includes(element)) element.remove()
    let next: HTMLElement | null = null
    for (const element of elements.toReversed()) {
      if (element.parentElement !== this.element || element.nextElementSibling !== next) this.element.insertBefore(element, next)
      next = element
    }
    // Tabs and line ends that the lexer changed would shift this; then everything is created again next time.
    const settled = tokens.slice(0, first).map((token) => token.raw).join('')
    const text = this.tail.startsWith(settled) ? this.tail : tokens.map((token) => token.raw).join('')
    this.tail = text.slice(settled.length)
    this.open = made.slice(first)
    this.before = made[first]?.before ?? ''
  }
}

/** `before` is the text of the block before it. */
function block(token: Token, final: boolean, before = ''): HTMLElement | undefined {
  switch (token.type) {
    case 'space':
    case 'def':
      return undefined
    case 'heading': {
      const { depth, tokens } = token as Tokens.Heading
      // The panel's headings have the higher levels.
      return el(`h${Math.min(6, depth + 2)}` as 'h3', { class: `h${depth}`, dir: 'auto' }, ...inline(tokens))
    }
    case 'code': {
      const { text, lang, raw } = token as Tokens.Code
      const closed = CLOSED.test(raw)
      return codeBlock(text, decoded(lang ?? ''), { final: final || closed, closed, before })
    }
    case 'blockquote':
      return el('blockquote', { dir: 'auto' }, ...blocks((token as Tokens.Blockquote).tokens, final))
    case 'hr':
      return el('hr')
    case 'list':
      return list(token as Tokens.List, final)
    case 'table':
      return table(token as Tokens.Table)
    case 'paragraph':
      return el('p', { dir: 'auto' }, ...inline((token as Tokens.Paragraph).tokens))
    case 'formula':
      return el('p', {}, formula(token as Formula))
    case 'html':
      return el('p', {}, (token as Tokens.HTML).text)
    case 'text': {
      const { tokens, text } = token as Tokens.Text
      return el('span', {}, ...(tokens ? inline(tokens) : withPlaces(decoded(text))))
    }
    default:
      return el('p', {}, token.raw)
  }
}

function blocks(tokens: readonly Token[], final: boolean): HTMLElement[] {
  let before = ''
  return tokens
    .map((token) => {
      const made = block(token, final, before)
      if (token.type !== 'space') before = token.raw
      return made
    })
    .filter((made) => made !== undefined)
}

function list(token: Tokens.List, final: boolean): HTMLElement {
  const items = token.items.map((item) =>
    el(
      'li',
      { class: item.task ? 'task' : undefined },
      item.task && el('span', { class: `codicon codicon-${item.checked ? 'pass-filled' : 'circle-large'}`, 'aria-label': item.checked ? 'done' : 'to do' }),
      ...blocks(item.tokens.filter((each) => each.type !== 'checkbox'), final),
    ),
  )
  return token.ordered ? el('ol', { dir: 'auto', start: token.start === '' ? undefined : token.start }, ...items) : el('ul', { dir: 'auto' }, ...items)
}

function table(token: Tokens.Table): HTMLElement {
  const row = (cells: readonly Tokens.TableCell[], tag: 'td' | 'th'): HTMLElement =>
    el('tr', {}, ...cells.map((cell) => breakable(el(tag, { dir: 'auto', class: cell.align ? `align-${cell.align}` : undefined }, ...inline(cell.tokens)))))
  return el(
    'div',
    { class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Table' },
    el('table', {}, el('thead', {}, row(token.header, 'th')), el('tbody', {}, ...token.rows.map((cells) => row(cells, 'td')))),
  )
}

/** Allow line breaks in long paths and names after their separators. */
function breakable(cell: HTMLElement): HTMLElement {
  const texts: Text[] = []
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) texts.push(walker.currentNode as Text)
  for (const text of texts) {
    const pieces = text.data.split(SEPARATED)
    if (pieces.length > 1) text.replaceWith(...pieces.flatMap((piece, at) => (at === 0 ? [piece] : [el('wbr'), piece])))
  }
  return cell
}

function inline(tokens: readonly Token[] | undefined, inLink = false): (Node | string)[] {
  return (tokens ?? []).map((token): Node | string => {
    switch (token.type) {
      case 'strong':
        return el('strong', {}, ...inline((token as Tokens.Strong).tokens, inLink))
      case 'em':
        return el('em', {}, ...inline((token as Tokens.Em).tokens, inLink))
      case 'del':
        return el('del', {}, ...inline((token as Tokens.Del).tokens, inLink))
      case 'codespan':
        return el('code', {}, ...(inLink ? [(token as Tokens.Codespan).text] : withPlaces((token as Tokens.Codespan).text)))
      case 'br':
        return el('br')
      case 'link': {
        const { href, tokens: said } = token as Tokens.Link
        return link(href, inline(said, true))
      }
      case 'image': {
        const { href, text } = token as Tokens.Image
        return link(href, inLink ? [icon('file-media'), ` ${text || href}`] : [picture(href, text)])
      }
      case 'formula':
        return formula(token as Formula)
      case 'escape':
        return decoded((token as Tokens.Escape).text)
      case 'text': {
        const { tokens: inner, text } = token as Tokens.Text
        if (inner) return el('span', {}, ...inline(inner, inLink))
        const made = inLink ? [decoded(text)] : withPlaces(decoded(text))
        return made.length === 1 && made[0] !== undefined ? made[0] : el('span', {}, ...made)
      }
      default:
        return token.raw
    }
  })
}

/** A short text in which only emphasis and code count: for buttons and labels, which can hold no links. */
export function inlineWords(text: string): (Node | string)[] {
  const made = (tokens: readonly Token[] | undefined): (Node | string)[] =>
    (tokens ?? []).map((token): Node | string => {
      switch (token.type) {
        case 'strong':
          return el('strong', {}, ...made((token as Tokens.Strong).tokens))
        case 'em':
          return el('em', {}, ...made((token as Tokens.Em).tokens))
        case 'codespan':
          return el('code', {}, (token as Tokens.Codespan).text)
        case 'escape':
        case 'text':
          return decoded((token as Tokens.Text).text)
        default:
          return token.raw
      }
    })
  return made(Lexer.lexInline(text))
}

// A file with a line, such as `src/app.py:12` or `Makefile:3:1`, but not a time or an address with a port.
const PLACE = /(?<![\w/.:@~-])((?:~\/|\.{0,2}\/)?(?:[\w@.+-]+\/)*(?:[\w@+-][\w@.+-]*\.[A-Za-z]\w{0,9}|Makefile|Dockerfile|Justfile|Rakefile|Gemfile)):(\d{1,7})(?::\d{1,5})?(?![\w/])/g
const HOST_ENDINGS = /^[^/]*\.(?:com|org|net|io|dev|local|localhost)$/

/** Text in which file locations are links. */
export function withPlaces(text: string): (Node | string)[] {
  const made: (Node | string)[] = []
  let at = 0
  for (const match of text.matchAll(PLACE)) {
    const [found, path = ''] = match
    if (HOST_ENDINGS.test(path)) continue
    if (match.index > at) made.push(text.slice(at, match.index))
    made.push(link(found, [found]))
    at = match.index + found.length
  }
  if (at < text.length || made.length === 0) made.push(text.slice(at))
  return made
}

/** A link without an `href`: the extension host checks its target. */
export function link(href: string, children: (Node | string)[]): HTMLElement {
  const go = (event: Event): void => {
    event.preventDefault()
    host.postMessage({ type: 'link', href })
  }
  return el(
    'a',
    { role: 'link', tabindex: 0, title: href, onclick: go, onkeydown: (event: KeyboardEvent) => { if (event.key === 'Enter') go(event) } },
    ...children,
  )
}

const parser = new DOMParser()

/** Replace entities such as `&lt;` by their characters. */
function decoded(text: string): string {
  if (!text.includes('&')) return text
  return text.replace(/&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi, (entity) => parser.parseFromString(entity, 'text/html').documentElement.textContent)
}
