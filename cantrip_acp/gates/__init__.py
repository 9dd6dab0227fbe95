"""Gates: how an entity reaches outside its medium. One contract and executor, one file a family of gates (§4.3)."""
