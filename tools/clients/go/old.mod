module chiplog.invalid/clients/go

go 1.24

require (
	google.golang.org/grpc v1.19.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/golang/protobuf v1.5.0 // indirect
	golang.org/x/net v0.0.0-20180826012351-8a410e7b638d // indirect
	golang.org/x/sys v0.0.0-20180830151530-49385e6e1522 // indirect
	golang.org/x/text v0.3.0 // indirect
	google.golang.org/genproto v0.0.0-20180817151627-c66870c02cf8 // indirect
)
