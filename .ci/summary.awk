# Shortens the output of go test -v ./...: a package that passed becomes one
# line, one that failed is shown with all that it said, and at the end stand the skipped tests
# with their reasons. With CI=true a skipped test is a failure.

!/^=== / && !/--- PASS: / { lines[n++] = $0 }

# What a test says goes with its name; the last thing said before a skip is why.
/^=== (RUN|NAME|CONT) / { test = $3 }
/^ +[A-Za-z0-9_]+\.go:[0-9]+: / {
	said = $0
	sub(/^ +[A-Za-z0-9_]+\.go:[0-9]+: /, "", said)
	reason[test] = said
}
/^ *--- SKIP: / {
	skipped++
	skips = skips "  " $3 ": " reason[$3] "\n"
}

/^(ok|\?) +\t/ {
	print
	n = 0
}

/^FAIL\t/ {
	for (i = 0; i < n; i++)
		print lines[i]
	n = 0
}

/^go test ended with / { status = $NF }

END {
	if (skipped)
		printf "\nSkipped, and what would let it run:\n%s", skips
	if (skipped && ENVIRON["CI"] == "true") {
		print "\nWith CI=true nothing may be skipped."
		exit 1
	}
	exit status
}
