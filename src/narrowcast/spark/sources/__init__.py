"""Reading: tables in any format, typed row by row, with bad rows set aside."""
