(block_mapping_pair
  key: (flow_node
    (plain_scalar
      (string_scalar) @name))) @item
