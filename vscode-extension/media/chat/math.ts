/** Formulas in Markdown: `$…$` and `\(…\)` in a line, `$$…$$` and `\[…\]` on their own. */
import type { MarkedExtension, Tokens } from 'marked'

export interface Formula extends Tokens.Generic {
  readonly type: 'formula'
  readonly text: string
  readonly display: boolean
}

// A dollar that begins a formula has no space after it and no word before it; one that ends it has no space before it, and
// no word after it. So prices and variables of a shell stay text.
const DOLLAR = /^\$(?![\s$])((?:\\.|[^\\$\n])*?(?:\\.|[^\\$\s]))\$(?![\w$])/
const DOLLARS = /^\$\$(?!\$)((?:\\.|\$(?!\$)|[^\\$])+?)\$\$/
const PARENTHESES = /^\\\((.+?)\\\)/s
const BRACKETS = /^\\\[(.+?)\\\]/s
const START = /(?<![\w\\$])\$\S|(?<!\\)\\[([]/
const NEAR = 1_000
// `$5 million, or 3$`: an amount with words after it.
const MONEY = /^\d[\d.,]*(?:$|[\s-]+\p{L}{2,})/u
// A formula on lines of its own. Without an end, or with an empty line before it, it is a paragraph.
const BLOCK = /^ {0,3}(?:\$\$(?!\$)([^$]+?)\$\$|\\\[(.+?)\\\]) *(?:\n+|$)/s
const BLOCK_START = /(?:^|\n) {0,3}(?:\$\$|\\\[)/
const OPEN = /^ {0,3}(?:\$\$|\\\[)[^\n]*(?:\n(?![ \t]*\n)[^\n]+)*\n?/

const made = (raw: string, text: string, display: boolean): Formula => ({ type: 'formula', raw, text: text.trim(), display })

export const formulas: MarkedExtension = {
  extensions: [
    {
      name: 'formula',
      level: 'block',
      start: (text) => {
        const found = BLOCK_START.exec(text)
        return found === null ? undefined : found.index + (found[0].startsWith('\n') ? 1 : 0)
      },
      tokenizer(text) {
        const open = OPEN.exec(text)?.[0]
        if (open === undefined) return undefined
        const whole = BLOCK.exec(open)
        if (whole !== null) {
          const [raw, dollars, brackets] = whole
          const inner = dollars ?? brackets ?? ''
          return inner.trim() === '' ? undefined : made(raw, inner, true)
        }
        // Its lines must not become lists and headings while its end is still to come.
        const said = open.replace(/\n$/, '')
        return { type: 'paragraph', raw: open, text: said, tokens: this.lexer.inline(said) }
      },
    },
    {
      name: 'inlineFormula',
      level: 'inline',
      // Asked again for each word that something else begins after: the whole rest would cost its square.
      start: (text) => START.exec(text.slice(0, NEAR))?.index ?? (text.length > NEAR ? NEAR : undefined),
      tokenizer(text) {
        const display = DOLLARS.exec(text) ?? BRACKETS.exec(text)
        if (display?.[1]?.trim()) return made(display[0], display[1], true)
        const line = DOLLAR.exec(text) ?? PARENTHESES.exec(text)
        if (!line?.[1]?.trim() || (text.startsWith('$') && MONEY.test(line[1]))) return undefined
        return made(line[0], line[1], false)
      },
    },
  ],
}
