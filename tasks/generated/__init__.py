"""Tasks whose texts are generated, or made from books: they ask what selection can find."""
