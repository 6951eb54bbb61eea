module gputune

go 1.26
