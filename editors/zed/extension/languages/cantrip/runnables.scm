; A button beside the recipe's name; tasks.json has what it runs.
((document
  (block_node
    (block_mapping
      (block_mapping_pair
        key: (flow_node
          (plain_scalar
            (string_scalar) @_key))
        value: (flow_node) @run))))
  (#eq? @_key "name")
  (#set! tag cantrip-recipe))
