"""What `remask report` is made of: runs and benchmarks are read, become parts, and parts become a page, Markdown or a table."""
