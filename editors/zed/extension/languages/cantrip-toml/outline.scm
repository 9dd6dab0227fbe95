(table
  .
  [
    (bare_key)
    (dotted_key)
  ] @name) @item
(table_array_element
  .
  [
    (bare_key)
    (dotted_key)
  ] @name) @item
