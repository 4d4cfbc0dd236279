#!/bin/sh
# Runs the test programs given: a line for each, the whole output of those that fail, and last the sum. A program ends
# with a line "N passed, N failed"; one that does not, or that ends with an error all the same, counts as a failure.
passed=0
failed=0
for program in "$@"; do
    "$program" >"$program.log" 2>&1
    code=$?
    line=$(tail -n 1 "$program.log")
    p=0
    f=0
    if expr "$line" : '[0-9][0-9]* passed, [0-9][0-9]* failed$' >/dev/null; then
        p=${line%% *}
        f=${line#*, }
        f=${f%% *}
    elif [ $code -eq 0 ]; then
        code="0, without a result"
    fi
    note=
    if [ "$code" != 0 ] && [ "$f" -eq 0 ]; then
        f=1
        note=" (exit code $code)"
    fi
    [ "$f" -eq 0 ] || cat "$program.log"
    printf '%-24s %s passed, %s failed%s\n' "$(basename "$program")" "$p" "$f" "$note"
    passed=$((passed + p))
    failed=$((failed + f))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
