(flow_sequence "]" @end) @indent
(flow_mapping "}" @end) @indent
