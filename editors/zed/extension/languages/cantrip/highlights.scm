(comment) @comment

(block_mapping_pair
  key: (flow_node) @property)
(flow_mapping
  (flow_pair
    key: (flow_node) @property))

; What makes a recipe, at its outermost level.
(document
  (block_node
    (block_mapping
      (block_mapping_pair
        key: (flow_node
          (plain_scalar
            (string_scalar) @keyword
            (#any-of? @keyword
              "name" "description" "crystal" "crystals" "call" "circle" "folding" "memory" "loom" "mcp_servers" "score" "retry")))))))

(block_mapping_pair
  value: (flow_node
    (plain_scalar
      (string_scalar) @string)))
(block_sequence_item
  (flow_node
    (plain_scalar
      (string_scalar) @string)))
(flow_sequence
  (flow_node
    (plain_scalar
      (string_scalar) @string)))
(flow_pair
  value: (flow_node
    (plain_scalar
      (string_scalar) @string)))

[
  (single_quote_scalar)
  (double_quote_scalar)
  (block_scalar)
] @string
(escape_sequence) @string.escape

(boolean_scalar) @boolean
(null_scalar) @constant
[
  (integer_scalar)
  (float_scalar)
] @number

(anchor_name) @label
(alias_name) @label
(tag) @type

[
  ","
  "-"
  ":"
  "?"
  ">"
  "|"
] @punctuation.delimiter
[
  "["
  "]"
  "{"
  "}"
] @punctuation.bracket
[
  "*"
  "&"
  "---"
  "..."
] @punctuation.special
