(comment) @comment

(bare_key) @property
(quoted_key) @property
(table
  [
    (bare_key)
    (dotted_key)
  ] @keyword)
(table_array_element
  [
    (bare_key)
    (dotted_key)
  ] @keyword)

(string) @string
(escape_sequence) @string.escape
(boolean) @boolean
[
  (integer)
  (float)
] @number
[
  (offset_date_time)
  (local_date_time)
  (local_date)
  (local_time)
] @string.special

"=" @operator
[
  "."
  ","
] @punctuation.delimiter
[
  "["
  "]"
  "[["
  "]]"
  "{"
  "}"
] @punctuation.bracket
