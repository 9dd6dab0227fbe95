; A prompt is prose for a model.
((block_mapping_pair
  key: (flow_node) @_key
  value: (block_node
    (block_scalar) @injection.content))
  (#match? @_key "^(system_prompt|description|instructions)$")
  (#set! injection.language "markdown"))

; What a scripted crystal says.
((block_mapping_pair
  key: (flow_node) @_key
  value: (block_node
    (block_scalar) @injection.content))
  (#eq? @_key "bash")
  (#set! injection.language "bash"))

((block_mapping_pair
  key: (flow_node) @_key
  value: (block_node
    (block_scalar) @injection.content))
  (#eq? @_key "code")
  (#set! injection.language "python"))
