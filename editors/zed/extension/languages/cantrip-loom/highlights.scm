(pair
  key: (string) @property)
(pair
  value: (string) @string)
(array
  (string) @string)
(escape_sequence) @string.escape
(number) @number
[
  (true)
  (false)
] @boolean
(null) @constant
[
  "{"
  "}"
  "["
  "]"
] @punctuation.bracket
[
  ","
  ":"
] @punctuation.delimiter
