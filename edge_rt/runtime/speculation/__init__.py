"""Whether to draft, who drafts and how much: modes, measured costs, learned acceptance, the tree."""
