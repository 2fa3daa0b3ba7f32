package main

// main is what a library has none of: the linker wants it all the same.
func main() {}
